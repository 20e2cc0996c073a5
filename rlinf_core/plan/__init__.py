"""Placement of a run's parts: the run as a graph, its measured costs, and the best layout."""
