"""The shared part of every node. Each package of nodes imports it first: it chooses the Python and takes signals."""

import faulthandler
import os
import signal
import sys

from rlinf_ros.interpreter import switch

switch()  # signals are still blocked
if "--ros-args" in sys.argv:  # a node's process, asked to end while it still imports: nothing is there to be put in order
    faulthandler.enable()  # a crash while it imports leaves its place in the log, as one while it runs does (spinning.py)
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))  # blocked by the supervisor until here
