"""What people look at: curves, films and pages of a run, and what recordings hold. Nothing here prints."""
