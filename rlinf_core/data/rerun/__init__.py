"""Recordings for Rerun's viewer."""
