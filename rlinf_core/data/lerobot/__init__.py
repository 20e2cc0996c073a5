"""LeRobot data sets, version 3.0 of their layout."""
