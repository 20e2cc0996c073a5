"""Policies that act in a process of their own, in a Python of their own."""
