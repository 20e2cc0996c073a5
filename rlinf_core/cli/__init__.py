"""The ``rlinf`` command."""
