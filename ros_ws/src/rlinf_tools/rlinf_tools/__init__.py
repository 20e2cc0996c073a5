"""Clients of a running station: doctor, calibration, first motion, arming, the safety drill."""

import rlinf_ros  # noqa: F401  first: it chooses the Python and takes signals
