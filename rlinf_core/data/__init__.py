"""Recordings as data: checked, repaired, put together, taken apart, counted, and in the formats of others.

One file for each verb; a format is a folder of its own. Nothing here changes what it reads: results go to a new folder.
"""
