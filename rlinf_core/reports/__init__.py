"""Reports: curves, films and pages of a run, and contents of recordings.

This package prints nothing.
"""
