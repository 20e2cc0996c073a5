"""The robot side of a station: drivers, controllers, grippers, cameras, the bridge to
simulators.
"""

import rlinf_ros  # noqa: F401  first: it chooses the Python and takes signals
