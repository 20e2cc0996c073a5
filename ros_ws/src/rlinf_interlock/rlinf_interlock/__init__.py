"""The interlock node: the only publisher of set-points. It enforces the limits of one arm.

S1 to S27 in comments are the safety requirements of docs/reference/safety_evidence.md.
"""

import rlinf_ros  # noqa: F401  first: it chooses the Python and takes signals
