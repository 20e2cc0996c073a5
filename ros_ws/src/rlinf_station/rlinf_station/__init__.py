"""The nodes that play and record episodes: environment, policy, recorder, uplink, director."""

import rlinf_ros  # noqa: F401  first: it chooses the Python and takes signals
