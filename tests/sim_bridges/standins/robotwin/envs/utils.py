class UnStableError(Exception):
    """The objects of a scene do not come to rest."""
