"""The operator of a station: devices, the scripted operator of a simulation, the operator's
page.
"""

import rlinf_ros  # noqa: F401  first: it chooses the Python and takes signals
