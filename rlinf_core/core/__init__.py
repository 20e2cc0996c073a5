"""Foundations without robotics: errors, files, plug-ins, signals, metrics.

Imports no other package of rlinf.
"""
