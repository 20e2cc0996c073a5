"""The command ``rlinf``: run one command, and print errors as one line."""

from __future__ import annotations

import atexit
import errno
import os
import pkgutil
import signal
import sys

from rlinf_core.cli.arguments import open_streams, reader_is_gone
from rlinf_core.cli.parsers import make_parser
from rlinf_core.core import extras
from rlinf_core.core.errors import FAILED, RestartLimitError, RlinfError
from rlinf_core.core.paths import replacement_folders
from rlinf_core.core.signals import defer_signals

REMEDIES = dict.fromkeys(
    (errno.ENOSPC, errno.EDQUOT), ". Free disk space and run the command again"
) | {
    errno.EROFS: ". Choose a writable folder",
    errno.ENAMETOOLONG: ". Choose a shorter name: file systems take 255 bytes",
}
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads cost more than they gain on small matrices


FIRST_STEPS = """rlinf trains robot policies by reinforcement learning on robots and simulators, over ROS 2.

first steps:
  rlinf doctor           installed and missing parts of this machine, and how to get them
  rlinf demo             a simulated robot learns to insert a peg, in minutes, without a GPU
  rlinf recipes          other recipes; also: rlinf robots, rlinf tasks, rlinf simulators
  rlinf --help           every command, with examples
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point: call ``run``.

    Errors of the system are one line, too; a closed pipe ends it silently.
    """
    open_streams()
    try:
        code = run(argv)
        print(end="", flush=True)  # so that a closed pipe is noticed here
        return code
    except OSError as error:
        if reader_is_gone() and isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        place = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"rlinf: {place}{REMEDIES.get(error.errno or 0, '')}", file=sys.stderr)
        return 1


def run(argv: list[str] | None = None, refused: int = 0) -> int:
    """Run one command. An error that a user can act on is a line on stderr, not a traceback.

    Args:
        argv: command line without the program; by default that of this process.
        refused: exit code of permanent errors, which a restart would meet again; 0 for the usual
            codes.

    Returns:
        The exit code: 0, 1 for a failure, 2 for wrong settings or usage, 130 after Ctrl-C;
            ``refused`` instead of 1 and 2.
    """
    if not (sys.argv[1:] if argv is None else argv):
        print(FIRST_STEPS, end="")
        return 0
    arguments = vars(make_parser().parse_args(argv))
    os.environ.update(replacement_folders())
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with defer_signals():
            command = pkgutil.resolve_name(f"rlinf_core.{arguments.pop('run')}")
        code = command(**arguments)
        return code if isinstance(code, int) else 0
    except RlinfError as error:
        print(f"rlinf: {error.with_code()}", file=sys.stderr)
        return FAILED if isinstance(error, RestartLimitError) else refused or error.exit_status()
    except ModuleNotFoundError as error:
        if extra := _which_extra(error):
            print(f"rlinf: {extra} [RL-E201]", file=sys.stderr)
            return refused or FAILED
        raise
    except KeyboardInterrupt:
        # ros2 launch may signal twice
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _which_extra(error: ModuleNotFoundError) -> str:
    """Return how to install the extra that brings a missing module."""
    extra = extras.extra_of(error.name or "")
    if extra is None:
        return ""
    return (
        f"expected the package '{error.name}', which is not installed. It comes with the extra "
        f"'{extra}': {extras.how_to_get(extra)}"
    )


def _interrupt(*_: object) -> None:
    """Handle SIGTERM like Ctrl-C, so that everything stops in order."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
