"""Argument parsing with one-line errors, the nearest known name, and grouped help."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import re
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rlinf_core.cli.examples import EXAMPLES
from rlinf_core.core.errors import WRONG_USAGE, escape_control, nearest
from rlinf_core.core.renames import COMMANDS
from rlinf_core.page import PORT as PAGE_PORT

MAX_PORT = 65535

CHOICE = re.compile(r"(.*?invalid choice: )(.+?) \(choose from (.*)\)", re.S)
UNKNOWN = "unrecognized arguments: "


GROUPS = {  # group of each option in --help, by the option's name
    "settings": {"set", "recipe", "vary", "robot", "task", "arm", "seed", "first-seed"},
    "network": {
        "host",
        "port",
        "api-key-file",
        "tls-cert",
        "tls-key",
        "plaintext",
        "lerobot-port",
        "web",
        "timeout",
        "domain",
    },
    "speed": {"jobs", "max-batch", "max-wait-ms", "device", "precision", "execution"},
    "output": {"out", "json", "video", "picture", "plot", "quiet", "no-report", "write"},
}


class Parser(argparse.ArgumentParser):
    """An argparse parser with one-line errors and grouped help. Subcommands have the same class."""

    _given: Sequence[str] = ()
    purpose = ""  # one line, for a command below `rlinf`

    def format_help(self) -> str:
        """Return the help: purpose, examples, usage, and options by group."""
        if not self.purpose:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_text(f"{self.purpose[0].upper()}{self.purpose[1:]}.")
        formatter.add_text(self.description)
        formatter.start_section("examples")
        formatter._add_item(lambda: "".join(f"  {line}\n" for line in self._examples()), [])
        formatter.end_section()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups, "usage: ")
        for title, actions in self._groups().items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        return formatter.format_help()

    def _examples(self) -> list[str]:
        """Return the examples; a command with subcommands shows the first one of each."""
        name = self.prog.removeprefix("rlinf ")
        if name in EXAMPLES:
            return [line.strip() for line in EXAMPLES[name].strip().splitlines()]
        return [
            lines.strip().splitlines()[0]
            for path, lines in EXAMPLES.items()
            if path.startswith(f"{name} ")
        ]

    def _groups(self) -> dict[str, list[argparse.Action]]:
        """Return the arguments and options by group."""
        groups: dict[str, list[argparse.Action]] = {
            "arguments": [],
            **{title: [] for title in GROUPS},
            "other options": [],
        }
        for action in self._actions:
            names = {option.lstrip("-") for option in action.option_strings}
            fitting = next(
                (title for title, options in GROUPS.items() if names & options), "other options"
            )
            groups[fitting if names else "arguments"].append(action)
        return {title: actions for title, actions in groups.items() if actions}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See argparse."""
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the error in one line and exit."""
        if choice := CHOICE.fullmatch(message):
            allowed = [name.strip(" '\"") for name in choice[3].split(",")]
            actual = choice[2].strip("'\"")
            old = f"{self.prog} {actual}".removeprefix("rlinf ")
            renamed = f", which is `rlinf {COMMANDS[old]}` now" if old in COMMANDS else ""
            message = (
                f"{choice[1]}'{actual}'{renamed or nearest(actual, allowed)}; expected one of "
                f"{', '.join(allowed)}"
            )
        elif message.startswith(UNKNOWN):
            unknown = message.removeprefix(UNKNOWN)
            command = self._command()
            meant = nearest(unknown.split()[0].partition("=")[0], command._option_string_actions)
            message = f"{UNKNOWN}{unknown}{meant}. `{command.prog} --help` lists its options"
        self.exit(WRONG_USAGE, f"{self.prog}: {escape_control(message)}\n")

    def _command(self) -> argparse.ArgumentParser:
        """Return the parser of the given subcommand."""
        command: argparse.ArgumentParser = self
        for word in self._given:
            for action in command._actions:
                if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                    command = action.choices[word]
                    break
        return command


Commands = argparse._SubParsersAction
MAX_INT, PICTURES = 2**31 - 1, (".png", ".jpg", ".pdf", ".svg")
STATIONS_RECIPE: dict[str, Any] = {
    "metavar": "recipe",
    "nargs": "?",
    "default": "demo",
    "help": "the station's recipe (default: demo)",
}
RECORDINGS: dict[str, Any] = {
    "nargs": "+",
    "type": Path,
    "metavar": "recordings",
    "help": "episodes, a spool, an inbox, or a run folder",
}


def output_file(*endings: str) -> Callable[[str], Path]:
    """Return a type for output files: a writable path with one of ``endings``, if there are any."""

    def read(text: str) -> Path:
        path, folder = Path(text), os.path.dirname(text) or os.curdir
        existing = text if os.path.exists(text) else folder
        if endings and path.suffix.lower() not in endings:
            raise argparse.ArgumentTypeError(
                f"expected a file's name that ends in {', '.join(endings)}, got {text}"
            )
        if (
            not text
            or os.path.isdir(text)
            or not os.path.isdir(folder)
            or not os.access(existing, os.W_OK)
        ):
            raise argparse.ArgumentTypeError(
                f"expected a file in an existing, writable folder, got {text or 'an empty name'}"
            )
        return path

    return read


SEVERAL: dict[str, Any] = {"action": "extend", "default": []}  # a repeated option extends the list
SET: dict[str, Any] = {"dest": "overrides", "nargs": "*", "metavar": "KEY=VALUE", **SEVERAL}


def json_output_file(text: str) -> Path:
    """Return a path for JSON; an existing file is replaced only if it is JSON too."""
    path, content = output_file()(text), b""
    if path.is_file():
        with contextlib.suppress(OSError), path.open("rb") as file:
            content = file.read(64).lstrip()
    if content and content[:1] not in (b"{", b"["):
        raise argparse.ArgumentTypeError(
            f"expected a new file or one with JSON, got {text}, which has other content"
        )
    return path


JSON: dict[str, Any] = {"dest": "json_file", "metavar": "JSON", "type": json_output_file}


def command(
    commands: Commands, name: str, run: str, text: str, description: str | None = None
) -> argparse.ArgumentParser:
    """Add a command that runs ``module:function``.

    The module is imported late, so help needs no torch.
    """
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=description)
    parser.set_defaults(run=run)
    return parser


def recipe_command(
    commands: Commands,
    name: str,
    run: str,
    text: str,
    default: str | None = None,
    description: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command that runs a recipe in a run folder."""
    parser = command(commands, name, run, text, description)
    parser.add_argument(
        "name",
        metavar="recipe",
        nargs="?" if default else None,
        default=default,
        help="a name in configs/ or a YAML file" + (f" (default: {default})" if default else ""),
    )
    parser.add_argument("--set", **SET, help="override, e.g. online.max_minutes=5")
    parser.add_argument(
        "--out",
        dest="run_dir",
        metavar="OUT",
        type=run_folder,
        default="",
        help="run folder (default: runs/<time>)",
    )
    return parser


def complete_help(parser: argparse.ArgumentParser) -> None:
    """Add missing purposes to all commands, and missing defaults to the help of their options."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help for choice in action._choices_actions}
            for name, below in action.choices.items():
                below.purpose = texts[name]
                complete_help(below)
        elif (
            action.option_strings
            and action.nargs != 0
            and not action.required
            and "(default" not in (action.help or "")
        ):
            default = action.default if action.default not in (None, "", []) else "none"
            values = " ".join(map(str, default)) if isinstance(default, list) else default
            action.help = f"{action.help or ''} (default: {values})".strip()


def run_folder(text: str) -> Path:
    """Return the run folder; the caller makes it once the recipe is checked."""
    path = Path(text or time.strftime("runs/%Y%m%d-%H%M%S")).resolve()
    if path.is_file():
        raise argparse.ArgumentTypeError(f"expected a folder, got the file {text}")
    return path


def show_command(commands: Commands) -> None:
    """Add ``show``, for ``rlinf`` and ``rlinf data``."""
    show = command(
        commands,
        "show",
        "cli.data:show",
        "print the content of recordings: one line for each episode, or topics",
        (
            "Each line has the outcome, length, commander, policy version, limits and seal of one "
            "recording. For a single recording the topics follow, with counts and times. Exit "
            "code 1 if a seal does not fit."
        ),
    )
    show.add_argument("paths", **RECORDINGS)
    show.add_argument(
        "--plot",
        type=output_file(*PICTURES),
        metavar="FILE",
        help="draw one episode's rewards and actions, e.g. episode.png",
    )


def fraction(text: str) -> float:
    """Parse a fraction between 0 and 1."""
    value = float(text)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {text}")
    return value


def at_least(
    low: float, number: type[int] | type[float], high: float = math.inf
) -> Callable[[str], float]:
    """Return a type for finite numbers from ``low`` to ``high``; integers are at most MAX_INT."""
    highest = min(high, MAX_INT) if number is int else high

    def read(text: str) -> float:
        value = number(text)
        if not (low <= value <= highest and math.isfinite(value)):
            has_bound = not math.isinf(high) or value > highest
            bounds = f"{low} to {highest}" if has_bound else f"{low} on"
            raise argparse.ArgumentTypeError(f"expected a number from {bounds}, got {text}")
        return value

    read.__name__ = number.__name__  # argparse: invalid int value
    return read


def add_number(
    parser: argparse._ActionsContainer,
    option: str,
    text: str,
    *,
    low: float,
    high: float = math.inf,
    kind: type[int] | type[float] = int,
    default: float | None = None,
    metavar: str = "N",
    dest: str | None = None,
) -> None:
    """Add an option with a number; ``complete_help`` appends the default to its help."""
    parser.add_argument(
        option,
        dest=dest,
        type=at_least(low, kind, high),
        default=default,
        metavar=metavar,
        help=text,
    )


def add_new_folder(parser: argparse.ArgumentParser, dest: str | None = None) -> None:
    """Add ``--out``, a required new folder."""
    parser.add_argument(
        "--out",
        dest=dest,
        type=Path,
        required=True,
        help="a new folder; nothing is overwritten",
    )


def add_web_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--web``, which serves the operator's page."""
    parser.add_argument(
        "--web",
        type=at_least(1, int, MAX_PORT),
        nargs="?",
        const=PAGE_PORT,
        metavar="PORT",
        help="serve the operator's page (docs/howto/operator_page.md) there (default: "
        f"{PAGE_PORT})",
    )


def open_streams() -> None:
    """Replace closed standard streams (``<&-``, ``>&-``) by /dev/null, also for child processes.

    Output escapes characters that its encoding lacks.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 (as long as this process), under the lowest number: its own
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a test may replace it
        # like stderr: file names may not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")


def reader_is_gone() -> bool:
    """Return whether the reader of our output has gone, like `head`.

    Unwritten output is dropped.
    """
    output = select.poll()
    with contextlib.suppress(OSError, AttributeError):  # none, or no file
        output.register(sys.stdout.fileno(), 0)
    is_closed = bool(output.poll(0))
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_closed


def add_push_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of an upload to the Hugging Face Hub."""
    parser.add_argument(
        "--to",
        dest="repository",
        required=True,
        metavar="OWNER/NAME",
        help="the repository, which is created if it does not exist",
    )
    parser.add_argument(
        "--public", action="store_true", help="a new repository is public (default: private)"
    )
    parser.add_argument("--message", default="", metavar="SENTENCE", help="message of the commit")


def add_pull_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a download from the Hugging Face Hub."""
    parser.add_argument("repository", metavar="OWNER/NAME", help="the repository")
    add_new_folder(parser)
    parser.add_argument("--revision", default="", help="a branch, tag or commit (default: main)")
