"""``rlinf train`` as a supervisor starts it: its exit code tells what it refuses, which no restart
mends, from all else.
"""

import sys

from rlinf_core.cli.main import run
from rlinf_core.core.errors import REFUSED

if __name__ == "__main__":
    sys.exit(run(["train", *sys.argv[1:]], REFUSED))
