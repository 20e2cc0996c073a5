"""The robot side of a station: drivers, controllers, grippers and cameras."""

import rlinf_ros  # noqa: F401  first: it chooses the Python and takes signals
