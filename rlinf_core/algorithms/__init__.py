"""Learning algorithms: one readable file each."""
