"""Content of the page besides live data: reference pictures, reasons for a stop, and curves.

``<run>/page.jsonl`` has one line per episode, for the curves.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.atomic_io import append_line
from rlinf_core.core.errors import RlinfError
from rlinf_core.robots.calibration.camera_alignment import (
    MIN_SIMILARITY,
    picture_motion,
    read_reference,
)

CACHE_S = 0.5  # several pages share one computation


class Views:
    """The reference pictures of a station's cameras. Files are read at each request.

    Args:
        references: file of each camera.
        newest: returns the newest picture (H, W, 3) uint8 of a camera by its index; None before the
            first.
    """

    def __init__(
        self, references: Sequence[Path], newest: Callable[[int], np.ndarray | None]
    ) -> None:
        self.references = list(references)
        self.newest = newest
        self.looking, self.alignments = asyncio.Lock(), dict[int, tuple[float, dict[str, Any]]]()

    def reference(self, camera: int) -> bytes:
        """Return a camera's reference picture from its file. Raises RlinfError if there is none."""
        try:
            return self._file(camera).read_bytes()
        except OSError as error:
            raise RlinfError(f"no reference: {error}") from error

    async def alignment(self, camera: int) -> dict[str, Any]:
        """Compare a camera's live picture with its reference.

        Returns:
            ``words``, ``aligned``, and if they can be computed ``alike``, ``right`` and ``down``
            [pixels], ``turned`` [rad]; see ``calibration.camera_alignment.PictureMotion``.
        """
        async with self.looking:  # one at a time, as it is expensive
            at, result = self.alignments.get(camera, (-CACHE_S, {}))
            if time.monotonic() - at >= CACHE_S:
                result = await asyncio.to_thread(self._poll, camera)
                self.alignments[camera] = time.monotonic(), result
            return result

    def _file(self, camera: int) -> Path:
        if not 0 <= camera < len(self.references):
            raise RlinfError(f"expected one of {len(self.references)} cameras, got {camera}")
        return self.references[camera]

    def _poll(self, camera: int) -> dict[str, Any]:
        try:
            reference = read_reference(self._file(camera), "rlinf camera align, with --write")
            now = self.newest(camera)
            if now is None:
                raise RlinfError("no picture has arrived yet")
            motion = picture_motion(reference, np.ascontiguousarray(now))
        except RlinfError as error:
            return {"words": str(error), "aligned": False}
        result = {"words": motion.advice, "aligned": motion.aligned, "alike": motion.similarity}
        return result | (
            {"right": motion.right, "down": motion.down, "turned": motion.rotation}
            if motion.similarity >= MIN_SIMILARITY
            else {}
        )


RESET = "after it ends, reset and arm"
WAIT = "wait; it ends by itself"
HOLD_CAUSES = {  # cause of HOLD or FAULT: (reason, next step of a person)
    "stale_command": (
        "The policy sends no command in time, so the arm rests.",
        "wait, or hold a key or a pad. If it lasts, rlinf status names the slow part.",
    ),
    "enable": (
        "No person has confirmed their presence lately.",
        "touch anything here, or press a key.",
    ),
    "new_session": ("A commanding program was restarted.", "arm again."),
    "operator_silent": (
        "The operator's messages stopped in a takeover.",
        "let go of every device, then press a key or a button; if that does not help, arm again.",
    ),
    "handing_back": ("The policy takes over again after a pause.", WAIT + "."),
    "realigning": (
        "The arm was away from its set-point. The set-point first moves to the arm.",
        WAIT + ".",
    ),
    "invalid_command": ("A command was refused.", "the interlock's log names it; reset and arm."),
    "contact": ("The tool is pressed harder than allowed.", "free the tool, reset, then arm."),
    "divergence": (
        "The arm does not follow its target: an obstacle may block it.",
        "remove the obstacle, reset, then arm.",
    ),
    "stale_state": (
        "The arm's pose is not received.",
        "start its driver, or check its cable; reset and arm.",
    ),
    "state_jump": (
        "The measured pose has jumped further than an arm can move.",
        "check the arm, then reset and arm.",
    ),
    "state_frame": (
        "The measured pose is in another frame than the limits.",
        "correct the frame in limits.yaml or in the driver, then restart.",
    ),
    "state_units": (
        "The measured state cannot be in metres and radians.",
        "see the interlock's log and rlinf doctor.",
    ),
    "distance_silent": ("The distance sensor is silent.", f"check its cable; {RESET}."),
    "distance_units": ("The distance cannot be in metres.", f"correct the sensor's unit; {RESET}."),
    "obstacle": ("An obstacle is at the arm.", f"remove it; {RESET}."),
    "outside_box": ("The tool is outside its box.", "move it back by hand, reset, then arm."),
    "outside_joints": (
        "A joint is outside its range.",
        "move it back by hand, reset, then arm.",
    ),
    "clock": (
        "The clock of the interlock's machine was set.",
        "disarm, then arm again.",
    ),
    "stalled": (
        "The interlock was delayed.",
        "reduce other load on this machine, reset, then arm.",
    ),
    "estop:page": ("The stop on this page is pressed.", "release the stop, reset, then arm."),
    "estop_silent:page": (
        "The stop of this page was silent: its server or every browser was disconnected.",
        "reset, then arm.",
    ),
    "estop": ("The e-stop '{}' is pressed.", "release it, reset, then arm."),
    "estop_silent": ("The e-stop '{}' is silent.", f"check its cable; {RESET}."),
    "foreign_publisher": ("Another program publishes on {}.", f"end that program; {RESET}."),
    "two_publishers": (
        "Two programs publish on {}.",
        "end one of them. Is rlinf teleop running beside this page?",
    ),
    "silent": ("No message on {}, which a limit needs.", f"start its publisher; {RESET}."),
    "robot": ("The robot reports a fault: {}.", "check the robot, reset, then arm."),
    "arm": (
        "Another arm may not move: {}.",
        "clear the stop of that arm; this one then continues.",
    ),
}
NOBODY_COMMANDS = (
    "The arm has no commander now, so it rests. This is not a fault.",
    "hold a key or a pad to move it.",
)


def cause_meaning(cause: str) -> str:
    """Return the reason in words for a cause of HOLD or FAULT.

    An unknown cause is returned unchanged.
    """
    return _of(cause, 0) or cause


def next_step(cause: str) -> str:
    """Return a person's next step for a cause of HOLD or FAULT; empty if it is unknown."""
    return _of(cause, 1)


def _of(cause: str, part: int) -> str:
    kind, _, of = cause.partition(":")
    if cause in HOLD_CAUSES:
        return HOLD_CAUSES[cause][part].format("")
    return HOLD_CAUSES[kind][part].format(of) if kind in HOLD_CAUSES else ""


MAX_EPISODES, WINDOW_EPISODES = 300, 20


class History:
    """The episodes of the curves, read from and appended to a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.episodes = deque[dict[str, Any]](maxlen=MAX_EPISODES)
        for line in file.read_text(errors="replace").splitlines() if file.is_file() else ():
            try:
                record = json.loads(line)
                self.episodes.append(
                    {
                        "mode": str(record["mode"]),
                        "success": bool(record["success"]),
                        "intervened": float(record["intervened"]),
                    }
                )
            except (ValueError, KeyError, TypeError):
                continue  # a truncated last line

    def add(self, **episode: Any) -> None:
        """Add a closed episode.

        Raises OSError if the disk is full; it is stored in memory all the same.
        """
        self.episodes.append(episode)
        append_line(self.file, json.dumps(episode))

    def curves(self) -> dict[str, Any]:
        """Return running means at each episode that is not a demonstration."""
        played = [episode for episode in self.episodes if episode["mode"] != "demonstration"]
        return {
            "window": WINDOW_EPISODES,
            "demonstrations": len(self.episodes) - len(played),
            **{
                name: _means([float(episode[name]) for episode in played])
                for name in ("success", "intervened")
            },
        }


def _means(values: list[float]) -> list[float]:
    """Return the means over the last WINDOW_EPISODES up to each value."""
    lasts = (values[max(0, end - WINDOW_EPISODES) : end] for end in range(1, len(values) + 1))
    return [round(sum(last) / len(last), 4) for last in lasts]
