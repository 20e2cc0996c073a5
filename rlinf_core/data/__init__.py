"""Recordings as data: check, repair, merge, split, count, and convert to other formats.

Each operation has one file, each format one folder. No function changes its input: results go to a
new folder.
"""
