"""Scripted operators: they stand in for a person at the SpaceMouse, and for an expert that is asked. One file each."""
