"""Policies: networks that answer an observation with an action, and the one file each is kept in."""
