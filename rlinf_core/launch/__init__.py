"""The processes of a station (graph.py), and their supervision without ROS's launch."""
