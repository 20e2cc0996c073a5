"""The terminal of a command: the live display of a run, and programs in the foreground.

A signal to the command is passed to the program in the foreground. The command waits for its end
and restores the terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import escape_control
from rlinf_core.core.signals import end_with_parent, on_signal
from rlinf_core.page.views import cause_meaning
from rlinf_core.recipes import Recipe

PATIENCE_S = 20.0  # timeout for the end of a child; a drill's station needs some seconds
REPORT_S = 5.0  # interval of lines while a command waits
STARTED_FD = "RLINF_STARTED_FD"  # variable with the descriptor that a started child closes


def foreground(command: list[str], environment: Mapping[str, str], starts: str = "") -> int:
    """Run a program in the foreground.

    Args:
        command: program with its arguments.
        environment: its environment variables.
        starts: name of a program that calls ``notify_started``; until then a line is printed every
            5 s.

    Returns:
        The program's exit code.

    Raises:
        KeyboardInterrupt: this process got a signal, and the program has ended.
    """
    signals: list[int] = []

    def on_interrupt(number: int) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    with restore_terminal(), on_signal(on_interrupt):
        reader, writer = os.pipe()
        # the program must not pass it to its children
        passed = {STARTED_FD: str(writer)} if starts else {}
        child = subprocess.Popen(
            command,
            env={**environment, **passed},
            pass_fds=(writer,) if starts else (),
            preexec_fn=end_with_parent,
        )
        os.close(writer)
        try:
            _report_start(reader, child, starts)
            return child.wait()
        except KeyboardInterrupt:
            # the terminal's Ctrl-C reaches the child itself
            if signals != [signal.SIGINT] or not _has_terminal():
                child.send_signal(signal.SIGINT)
            _await(child)
            raise
        finally:
            os.close(reader)
            child.kill()
            child.wait()


def notify_started() -> None:
    """Tell the parent that this program has started and reports its own waits."""
    with contextlib.suppress(KeyError, OSError, ValueError):
        os.close(int(os.environ.pop(STARTED_FD)))


def _report_start(reader: int, child: subprocess.Popen[bytes], starts: str) -> None:
    """Print a line every ``REPORT_S`` until the child closes its end of the pipe or ends."""
    started_at = time.monotonic()
    while starts and child.poll() is None and not select.select([reader], [], [], REPORT_S)[0]:
        print(
            f"rlinf: {time.monotonic() - started_at:.0f} s: {starts} starts; a busy machine takes "
            f"longer",
            file=sys.stderr,
            flush=True,
        )


def _await(child: subprocess.Popen[bytes]) -> None:
    """Wait for the child's end; terminate it if it ignores Ctrl-C."""
    for _ in range(2):
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE_S)
        child.terminate()


def _has_terminal() -> bool:
    """Return whether a terminal's Ctrl-C reaches this process group."""
    try:
        terminal = os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    with open(terminal, "rb"):
        return os.tcgetpgrp(terminal) == os.getpgrp()


@contextlib.contextmanager
def restore_terminal() -> Iterator[None]:
    """Restore the terminal's settings after a program that reads single keys."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


PHASES = {
    "start": "starting the station",
    "collect": "collecting demonstrations",
    "sft": "supervised fine-tuning",
    "evaluate_before": "evaluating before RL",
    "online": "improving online",
    "drain": "letting the learner catch up",
    "evaluate_after": "evaluating after RL",
    "done": "done",
}
LINES_S = 4.0  # interval of lines without a terminal
NEARLY_FULL, FULL = 0.5, ": nothing is played or recorded until the trainer accepts some"


class Display:
    """Shows the director's ``status.json`` as a live panel, or as lines without a terminal."""

    def __init__(self, recipe: Recipe, run_dir: Path, quiet: bool) -> None:
        self.recipe = recipe
        self.path = run_dir / "status.json"
        self.plain = quiet or not sys.stdout.isatty()
        self.notes: list[str] = []
        self.started = time.monotonic()
        self.printed_at = 0.0
        self.changes: Any = None
        self.trainer_connected_once = False
        self.live: Any = None

    def __enter__(self) -> Display:
        if not self.plain:
            from rich.live import Live

            self.live = Live(refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def note(self, text: str) -> None:
        """Print an event of a process."""
        self.notes = [*self.notes[-3:], text]
        if self.plain:
            print(f"  ! {escape_control(text)}", flush=True)

    def update(self) -> None:
        """Show the newest status."""
        try:
            status = json.loads(self.path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return
        if self.live:
            self.live.update(self._panel(status))
        elif self._changes(status) != self.changes or time.monotonic() - self.printed_at > LINES_S:
            self.changes, self.printed_at = self._changes(status), time.monotonic()
            print(
                "  "
                + "  ".join(f"{key}: {escape_control(value)}" for key, value in self._rows(status)),
                flush=True,
            )

    def _changes(self, status: dict[str, Any]) -> Any:
        """Return the values whose change is worth another line."""
        return status["phase"]

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def _rows(self, status: dict[str, Any]) -> list[tuple[str, str]]:
        trainer, safety = status["trainer"], status["safety"]
        total = f" of {status['total']}" if status["total"] else ""
        phase = PHASES.get(status["phase"], status["phase"])
        if status["phase"] == "online":
            phase += f" ({self.recipe.algorithm.name})"
        rows = [
            ("phase", phase),
            ("elapsed", minutes_text(self.elapsed)),
            ("left in phase", self._left(status)),
            ("episodes", f"{status['done']}{total}, {status['successes']} succeeded"),
        ]
        if status["phase"] == "online":
            rows.append(("success (last 50)", f"{status['recent_success']:.0%} without help"))
            rows.append(
                ("taken over (last 50)", f"{status['recent_intervened']:.0%} of the time steps")
            )
            rows.append(
                ("env steps", f"{status['env_steps']} of {self.recipe.online.max_env_steps}")
            )
        held = ", held for this evaluation" if status["phase"].startswith("evaluate") else ""
        rows += [
            ("updates", f"{trainer['updates']} ({trainer['update_ratio']:.2f} per step)"),
            (
                "policy",
                f"version {status['policy_version']}{held}, {status['inference_p50_ms']:.1f} ms"
                if status["policy_version"] >= 0
                else "none yet",
            ),
            (
                "interlock",
                f"{_interlock(safety)} ({safety['limited']} limited, {safety['holds']} "
                f"held, {safety['refused']} refused)",
            ),
            ("in command", safety.get("takeover", "PAUSED")),
        ]
        for key, title in (("waiting_for", "waiting for you"), ("operator", "operator")):
            if status.get(key):
                rows.append((title, status[key]))
        if status["phase"] == "sft":
            rows.append(("SFT steps left", f"{trainer.get('sft_left', 0):.0f}"))
        if trainer["backlog"]:
            rows.append(("backlog", f"{trainer['backlog']} episodes"))
        if trainer.get("set_aside"):
            rows.append(
                (
                    "set aside",
                    f"{trainer['set_aside']} episodes refused by the trainer; the reasons are in "
                    "spool/refused",
                )
            )
        if trainer.get("spool_full", 0.0) > NEARLY_FULL:
            rows.append(
                (
                    "spool",
                    f"{trainer['spool_full']:.0%} "
                    f"full{FULL if trainer['spool_full'] >= 1.0 else ''}",
                )
            )
        self.trainer_connected_once |= bool(trainer["connected"])
        if not trainer["connected"]:
            rows.append(
                (
                    "trainer",
                    "away; nothing is lost" if self.trainer_connected_once else "not connected yet",
                )
            )
        return rows

    def _left(self, status: dict[str, Any]) -> str:
        """Return the estimated rest of the phase in words."""
        online, spent = self.recipe.online, status["phase_seconds"]
        if status["phase"] == "online":
            fraction = max(
                status["env_steps"] / online.max_env_steps, spent / 60.0 / online.max_minutes
            )
        else:
            fraction = status["done"] / status["total"] if status["total"] else 0.0
        return (
            minutes_text(max(0.0, spent * (1.0 - fraction) / fraction)) if fraction > 0.02 else "-"
        )

    def _panel(self, status: dict[str, Any]) -> Any:
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for key, value in self._rows(status):
            table.add_row(f"[bold]{key}", Text(escape_control(value)))
        for note in self.notes:
            table.add_row("[yellow]note", Text(escape_control(note)))
        title = Text(escape_control(f"rlinf · {self.recipe.name} · seed {self.recipe.seed}"))
        return Panel(table, title=title, expand=False)


def _interlock(safety: Mapping[str, Any]) -> str:
    """Return the interlock's state, with its reason in words."""
    return (
        f"{safety['state']} {safety['cause']}: {cause_meaning(safety['cause'])}"
        if safety["cause"]
        else str(safety["state"])
    )


def minutes_text(seconds: float) -> str:
    """Return seconds as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
