"""Video world models: frames and a chunk of actions in, frames out, in a process of their own.

A model that does not fit this environment runs in another Python: ``RLINF_PYTHON_<NAME>`` names it
(``rlinf_core.core.isolated``). The processes exchange lines of JSON, and pictures as bytes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np

from rlinf_core.core import isolated, plugins
from rlinf_core.core.errors import RlinfError, remote_error
from rlinf_core.core.isolated import IsolatedProcess, end_with
from rlinf_core.specs.frames import CHANNELS
from rlinf_core.worlds.frames import check_frames

GIVE_UP_S = 600.0  # longest wait for an answer; a large model loads for minutes
BUILTIN = {
    "tiny": "rlinf_core.worlds.tiny_video:TinyVideo",
    "replay": "rlinf_core.worlds.video:ReplayVideo",
}
MAX_BYTES = 2**31  # largest size of the pictures in a message


class VideoModel(Protocol):
    """B branches of imagined video.

    Attributes:
        condition: C, number of frames that a branch begins from.
        chunk: K, number of actions and of predicted frames in a step.
    """

    condition: int
    chunk: int

    def begin(self, rows: Sequence[int], frames: np.ndarray, actions: np.ndarray) -> None:
        """Begin branches from recorded frames.

        Args:
            rows: (R,) numbers of the branches.
            frames: (R, C, H, W, 3) uint8, the present one last.
            actions: (R, C - 1, A) normalised, between them.
        """

    def step(self, rows: Sequence[int], actions: np.ndarray) -> np.ndarray:
        """Return the frames (R, K, H, W, 3) uint8 after each of the next actions (R, K, A)."""


class ReplayVideo:
    """Recorded frames, whatever the actions are. It tests an environment without a model.

    Args:
        file: an .npz with ``frames`` (T, H, W, 3) uint8 of one episode.

    Raises:
        RlinfError: the file cannot be read, or its frames have another type or shape.
    """

    condition, chunk = 1, 1

    def __init__(self, file: str) -> None:
        remedy = "Write it with numpy.savez(file, frames=frames)"
        try:
            with np.load(file, allow_pickle=False) as arrays:
                frames = arrays["frames"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, BadZipFile) as error:
            raise RlinfError(
                f"{file}: expected an .npz with the array frames, got: {error}. {remedy}"
            ) from error
        self.frames = check_frames(frames, (None, None, None, CHANNELS), str(file), remedy)
        self._places: dict[int, int] = {}

    def begin(self, rows: Sequence[int], frames: np.ndarray, actions: np.ndarray) -> None:
        """Begin at the recorded frame that is nearest to the last one."""
        check_frames(
            frames,
            (len(rows), None, *self.frames.shape[1:]),
            "video model 'replay': the frames that a branch begins from",
            "Use frames of the recording's size",
        )
        for row, shown in zip(rows, frames[:, -1], strict=True):
            distance = np.abs(self.frames.astype(float) - shown).mean((1, 2, 3))
            self._places[row] = int(distance.argmin())

    def step(self, rows: Sequence[int], actions: np.ndarray) -> np.ndarray:
        """Return the next recorded frames; the last one is repeated."""
        for row in rows:
            self._places[row] = min(self._places[row] + 1, len(self.frames) - 1)
        return np.stack([self.frames[self._places[row]][None] for row in rows])


class RemoteVideo:
    """A ``VideoModel`` in another process; closed with ``close``, or when this process ends.

    Args:
        name: a built-in model, an entry point of ``rlinf.video_models``, ``module:Class`` or
            ``file.py:Class``.
        options: arguments of its class.

    Raises:
        RlinfError: it did not start, or has died; its output is on stderr.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        python = isolated.python_of(name.partition(":")[0].rpartition("/")[2].partition(".")[0])
        arguments = [
            "-m",
            "rlinf_core.worlds.video",
            plugins.with_absolute_path(name),
            json.dumps(options),
        ]
        label = f"video model '{name}'"
        self._isolated = IsolatedProcess(python or sys.executable, arguments, label, GIVE_UP_S)
        self._file = self._isolated.connection.makefile("rwb")
        sizes = self._answer()[0]
        self.condition, self.chunk = (
            check_count(sizes.get(part), f"video model '{name}': {part}")
            for part in ("condition", "chunk")
        )
        self._picture: tuple[int | None, ...] = (None, None, CHANNELS)

    def begin(self, rows: Sequence[int], frames: np.ndarray, actions: np.ndarray) -> None:
        """See ``VideoModel``.

        Raises:
            RlinfError: the frames have another type or shape.
        """
        check_frames(
            frames,
            (len(rows), self.condition, None, None, CHANNELS),
            f"video model '{self.name}': the frames that a branch begins from",
            "Record pictures of a camera",
        )
        self._picture = frames.shape[2:]
        self._call("begin", rows, actions, np.ascontiguousarray(frames))

    def step(self, rows: Sequence[int], actions: np.ndarray) -> np.ndarray:
        """See ``VideoModel``.

        Raises:
            RlinfError: the frames have another type or shape.
        """
        frames = self._call("step", rows, actions, None)
        return check_frames(
            frames,
            (len(rows), self.chunk, *self._picture),
            f"video model '{self.name}'",
            "Correct its method step",
        )

    def close(self) -> None:
        """End its process."""
        self._isolated.close()
        with contextlib.suppress(OSError):  # unsent data
            self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def _call(
        self, call: str, rows: Sequence[int], actions: np.ndarray, frames: np.ndarray | None
    ) -> np.ndarray | None:
        head = {
            "call": call,
            "rows": [int(row) for row in rows],
            "actions": np.asarray(actions, float).tolist(),
            "actions_shape": list(np.shape(actions)),
            "shape": None if frames is None else list(frames.shape),
        }
        try:
            self._file.write(json.dumps(head).encode() + b"\n")
            if frames is not None:
                self._file.write(frames.tobytes())
            self._file.flush()
        except OSError:
            raise self._isolated.ended() from None
        return self._answer()[1]

    def _answer(self) -> tuple[dict[str, Any], np.ndarray | None]:
        try:
            line = self._file.readline()
        except TimeoutError:
            self.close()
            raise RlinfError(
                f"video model '{self.name}': expected an answer within {GIVE_UP_S:.0f} s, got "
                "none. Its process was ended"
            ) from None
        except OSError:
            line = b""
        if not line:
            raise self._isolated.ended()
        try:
            head = json.loads(line)
            if "error" in head:
                raise remote_error(head["error"], head["text"])
            return head, _pictures(self._file, head["shape"])
        except EOFError:
            raise self._isolated.ended() from None
        except (ValueError, LookupError, TypeError) as error:
            self.close()  # the rest of the answer cannot be found
            raise RlinfError(
                f"video model '{self.name}': expected an answer in JSON with the shape of its "
                f"frames, got {line[:80]!r}. Its process was ended. Use one version of "
                "rlinf in both Pythons"
            ) from error


def check_count(value: Any, name: str) -> int:
    """Return a whole number from 1 on.

    Raises:
        RlinfError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise RlinfError(
            f"{name}: expected a whole number from 1 on, got {value!r}. Correct its class"
        )
    return int(value)


def _pictures(file: Any, shape: list[int] | None) -> np.ndarray | None:
    """Read an array of pictures of this shape; raises EOFError if the other side has gone."""
    if shape is None:
        return None
    if not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"expected whole numbers from 0 on, got {shape}")
    size = prod(shape)
    if not 0 <= size <= MAX_BYTES:
        raise RlinfError(
            f"a video model: expected at most {MAX_BYTES} bytes of pictures, got {size}. "
            "Use fewer branches or smaller pictures"
        )
    content = file.read(size)
    if len(content) < size:
        raise EOFError
    return np.frombuffer(content, np.uint8).reshape(shape)


def build(name: str, options: Mapping[str, Any]) -> VideoModel:
    """Build a video model by name in this process."""
    part = plugins.find("video_models", name, BUILTIN, "world.video.model")
    try:
        return part(**options)
    except TypeError as error:
        raise RlinfError(
            f"video model '{name}': expected options of its class, got "
            f"{', '.join(options) or 'none'}: {error}. Correct world.video.options"
        ) from error


def serve(name: str, options: Mapping[str, Any], file: Any) -> None:
    """Answer calls until the other side closes; errors are sent as text."""

    def answer(head: dict[str, Any], frames: np.ndarray | None = None) -> None:
        file.write(json.dumps(head | {"shape": None if frames is None else frames.shape}).encode())
        file.write(b"\n" + (b"" if frames is None else frames.tobytes()))
        file.flush()

    def failed(error: Exception) -> None:
        text = str(error) if isinstance(error, RlinfError) else f"{type(error).__name__}: {error}"
        answer({"error": type(error).__name__, "text": text})

    try:
        model = build(name, options)
        condition, chunk = (
            check_count(getattr(model, part, None), f"video model '{name}': {part}")
            for part in ("condition", "chunk")
        )
        answer({"condition": condition, "chunk": chunk})
    except Exception as error:  # noqa: BLE001 (the other side reports every error)
        failed(error)
        return
    for line in file:
        head = json.loads(line)
        frames = _pictures(file, head["shape"])
        actions = np.array(head["actions"], np.float32).reshape(head["actions_shape"])
        try:
            if head["call"] == "begin":
                model.begin(head["rows"], frames, actions)  # type: ignore[arg-type]
                result = None
            else:
                # a conversion would hide NaN and fractions
                result = check_frames(
                    model.step(head["rows"], actions),
                    (len(head["rows"]), chunk, None, None, CHANNELS),
                    f"video model '{name}'",
                    "Correct its method step",
                )
                result = np.ascontiguousarray(result)
        except Exception as error:  # noqa: BLE001 (the other side reports every error)
            failed(error)
            continue
        answer({}, result)


def main() -> None:
    """Run in the other process: ``python -m rlinf_core.worlds.video NAME OPTIONS FD``."""
    name, options, descriptor = sys.argv[1:]
    threading.Thread(target=end_with, args=(int(descriptor),), daemon=True).start()
    with socket.socket(fileno=int(descriptor)) as connection:
        serve(name, json.loads(options), connection.makefile("rwb"))


def file_options(path: Path) -> dict[str, Any]:
    """Return the options of the tiny model in a file."""
    return {"file": str(path.resolve())}


if __name__ == "__main__":
    main()
