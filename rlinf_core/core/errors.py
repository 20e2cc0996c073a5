"""Errors a user can act on: the expected value, the actual one, and the remedy."""

import difflib
import errno
from collections.abc import Iterable
from typing import Any

from rlinf_core.core.error_codes import OTHER, code_by_place, error_kinds, modules_of

FAILED, WRONG_USAGE = 1, 2  # exit codes; 2 is also argparse's
# exit code of a process that hosts several nodes, plus the index of the failed one
NODE_FAILED = 100
# exit code of a process that has reported why it cannot go on (EX_CONFIG of sysexits.h); not
# restarted
REFUSED = 78


class RlinfError(Exception):
    """An error caused by input or surroundings, with a fix in its message.

    Args:
        args: the message.
        code: its stable code; by default error_codes.yaml decides it by class and module.

    Example:
        >>> try:
        ...     load_recipe("sim_sax")
        ... except RlinfError as error:
        ...     print(error.code)
        RL-E104
    """

    _code = ""

    def __init__(self, *args: object, code: str = "") -> None:
        super().__init__(*args)
        self._code = code

    @property
    def code(self) -> str:
        """Stable code of the error, for example ``RL-E101``.

        An error that wraps another one has its code.
        """
        if self._code:
            return self._code
        cause = self.__cause__
        if isinstance(cause, RlinfError) and cause.code != OTHER:
            return cause.code
        classes = [kind.__name__ for kind in type(self).__mro__]
        places = ["", *reversed(modules_of(self.__traceback__))]
        return next(filter(None, (code_by_place(classes, place) for place in places)), OTHER)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the code in another process, which gets no traceback."""
        state = {} if self.code == OTHER else {"_code": self.code}
        return (*super().__reduce__()[:2], {**self.__dict__, **state})

    def with_code(self) -> str:
        """Return the message with the code at its end, for a person."""
        return f"{self} [{self.code}]"

    def exit_status(self) -> int:
        """Return the exit code of a command that ends with this error."""
        return WRONG_USAGE if error_kinds()[self.code].usage else FAILED


class RecipeError(RlinfError):
    """An invalid recipe, task or robot YAML."""


class SpecError(RlinfError):
    """Data or a policy that does not fit the station's specs."""


class PolicyFileError(RlinfError):
    """A policy file that cannot be used."""


class EpisodeError(RlinfError):
    """A recording that cannot be read as an episode."""


class SpoolError(RlinfError):
    """The spool cannot take or keep an episode."""


class RestartLimitError(RlinfError):
    """Processes died too often, or found no room; a restart continues from the last checkpoint."""


class IngestError(RestartLimitError):
    """The receiver of episodes cannot go on; no episode is at fault."""


class StartupError(RlinfError):
    """A process on Ray that failed at its start, and would fail again."""


class BridgeError(RlinfError):
    """The bridge cannot carry an episode or a policy."""


class UnreachableError(BridgeError):
    """The peer does not answer, whatever is sent."""


class RefusedError(BridgeError):
    """The trainer will never take this episode; sending it again does not help."""


class ServingError(RlinfError):
    """A policy server or its client that cannot go on: no peer, or another protocol."""


class RefusedRequestError(ServingError):
    """The server answers, but refuses this observation."""


class AnswerError(ServingError):
    """The server goes on, but one of its answers must not be played."""


class EngineError(RlinfError):
    """A server that computes for ours and does not answer, or gives an impossible answer."""


class DeviceError(RlinfError):
    """An operator's device that is missing, silent, gone or sends garbage.

    Attributes:
        disconnected: True if it must be opened anew.
    """

    def __init__(self, text: str, disconnected: bool = False) -> None:
        super().__init__(text)
        self.disconnected = disconnected


TRANSIENT_ERRNOS = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EIO,
    errno.ESTALE,
    errno.ENOSPC,
    errno.EDQUOT,
)


def remote_error(kind: object, text: str) -> RlinfError:
    """Return an error that another process reports, of its class if that is one of ours."""
    error_class = globals().get(str(kind))
    if not (isinstance(error_class, type) and issubclass(error_class, RlinfError)):
        error_class = RlinfError
    return error_class(text)


def is_transient(error: BaseException) -> bool:
    """Return whether the error is a transient condition of the machine (memory, disk, descriptors).

    Such an error says nothing about the data, so that the operation can be tried again.
    """
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS
    )


def escape_ascii(text: object) -> str:
    """Return foreign text in printable ASCII, safe for terminals and logs; at most 2000 characters.

    Quotation marks stay as they are.
    """
    return "".join(sign if sign in "'\"" else ascii(sign)[1:-1] for sign in str(text)[:2000])[:2000]


def escape_control(text: str) -> str:
    """Return foreign text for a person: letters unchanged, control characters as numbers."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def harmless_lines(text: str) -> str:
    """Apply ``escape_control`` line by line; logs and ROS messages accept the result."""
    return "\n".join(map(escape_control, text.split("\n")))


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""
