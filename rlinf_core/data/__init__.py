"""Recordings as data: check, repair, merge, split, count, and convert to other formats.

Each verb has one file, each format one folder. Nothing here changes its input: results go to a new
folder.
"""
