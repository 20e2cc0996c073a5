"""``rlinf train`` under a supervisor, with an exit code for errors that no restart can fix."""

import sys

from rlinf_core.cli.main import run
from rlinf_core.core.errors import REFUSED

if __name__ == "__main__":
    sys.exit(run(["train", *sys.argv[1:]], REFUSED))
