"""The interlock node: the only publisher of set-points. It enforces the limits of one arm."""

import rlinf_ros  # noqa: F401  first: it chooses the Python and takes signals
