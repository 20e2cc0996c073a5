"""The shared part of every node.

Each package of nodes imports it first: it chooses the Python and handles signals.
"""

import faulthandler
import os
import signal
import sys

from rlinf_ros.interpreter import switch

switch()  # signals are still blocked
# a node's process that must end during its imports: nothing needs cleaning up
if "--ros-args" in sys.argv:
    # a crash during the imports is logged, as one while running (spinning.py)
    faulthandler.enable()
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, lambda *_: os._exit(0))
    # blocked by the supervisor until here
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
