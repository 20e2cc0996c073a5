"""Where the parts of a run execute: the run as a graph, its measured costs, and the layout that
they favour.
"""
