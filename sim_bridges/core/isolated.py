"""Simulators by name, in this process or in a virtual environment of their own.

``RLINF_PYTHON_<NAME>`` names the interpreter of a simulator with its own Python
(``rlinf_core.core.isolated``). The processes use a socket with lines of JSON, and pictures as
bytes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_core.core import isolated
from rlinf_core.core.errors import RlinfError, remote_error
from rlinf_core.core.isolated import IsolatedProcess, end_with
from rlinf_core.specs.frames import CHANNELS, frames_fault
from sim_bridges.core.interface import Arms, Simulator, build, lists_to_tuples, options_of

# without an answer; Genesis and Isaac Sim compile for minutes when they are first started
TIMEOUT_S = 600.0


def python_of(name: str) -> str | None:
    """Return the interpreter of an isolated simulator or module.

    It is None if it runs in this process.
    """
    return isolated.python_of(name.removeprefix("sim_bridges.twins."))


class IsolatedSimulator:
    """A ``Simulator`` in another process; closed with ``close``, or when this process ends.

    Args:
        python: the interpreter to run it in.
        name, options: which simulator.

    Raises:
        RlinfError: it did not start, or has died; what it printed stands on stderr.
    """

    def __init__(self, python: str, name: str, options: dict[str, object]) -> None:
        self._name = name
        arguments = ["-m", "sim_bridges.core.isolated", name, json.dumps(options)]
        self._isolated = IsolatedProcess(python, arguments, f"simulator '{name}'", TIMEOUT_S)
        self._process = self._isolated.process
        self._file = self._isolated.connection.makefile("rwb")
        about = self._answer()
        self.tick_s = about["tick_s"]
        self.cameras = tuple(about["cameras"])
        self.joint_names = tuple(about["joint_names"])
        self._has_faults = about["faulting"]

    def reset(self, seed: int) -> None:
        self._call("reset", seed)

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        self._call(
            "advance",
            None if target_pose is None else [float(value) for value in target_pose],
            None if gripper_width is None else float(gripper_width),
        )

    def tcp_pose(self) -> np.ndarray:
        return np.array(self._state["tcp_pose"])

    def gripper_width(self) -> float | None:
        return self._state["gripper_width"]

    @property
    def instruction(self) -> str:
        """The instruction of the present scene; empty if the task has it."""
        return self._state["instruction"]

    @property
    def faults(self) -> tuple[str, ...]:
        """See ``HasFaults``; none where it is not."""
        return tuple(self._state["faults"])

    def provoke(self, fault: str) -> bool:
        return self._has_faults and self._call("provoke", fault)

    def recover(self) -> bool:
        return not self._has_faults or self._call("recover")

    def channels(self) -> dict[str, np.ndarray]:
        return {
            name: np.array(values, dtype=float) for name, values in self._call("channels").items()
        }

    def succeeded(self) -> bool | None:
        return self._call("succeeded")

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        expected = [height, width, CHANNELS]
        if (shape := self._call("render", camera, height, width)) != expected:
            self.close()  # the pixels have another number
            raise RlinfError(
                f"simulator '{self._name}', camera {camera}: expected a picture of shape "
                f"{expected}, got {shape}. Its process was ended. Use one version of rlinf in both "
                "Pythons"
            )
        size = CHANNELS * height * width
        pixels = self._file.read(size)
        if len(pixels) < size:
            self._died()
        return np.frombuffer(pixels, np.uint8).reshape(height, width, 3).copy()

    def close(self) -> None:
        """End its process."""
        self._isolated.close()
        with contextlib.suppress(OSError):  # the rest cannot be sent any more
            self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def _call(self, call: str, *arguments: object) -> Any:
        try:
            self._file.write(json.dumps([call, *arguments]).encode() + b"\n")
            self._file.flush()
        except OSError:
            self._died()
        return self._answer()

    def _answer(self) -> Any:
        try:
            line = self._file.readline()
        except TimeoutError:
            self.close()
            raise RlinfError(
                f"simulator '{self._name}': no answer for {TIMEOUT_S:.0f} s; it was ended"
            ) from None
        except OSError:
            line = b""
        if not line:
            self._died()
        try:
            answer = json.loads(line)
            if "error" in answer:
                raise remote_error(answer["error"], answer["text"])
            self._state = answer.get("state", {})
            return answer["value"]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.close()  # the rest of the answer cannot be found
            raise RlinfError(
                f"simulator '{self._name}': expected an answer in JSON with a value, got "
                f"{line[:80]!r}. Its process was ended. Use one version of rlinf in both Pythons"
            ) from error

    def _died(self) -> None:
        raise self._isolated.ended() from None


def serve(make: Callable[[], Any], file: Any) -> None:
    """Answer calls until the other side closes; errors are sent as text."""
    from sim_bridges.core.interface import Arms, instruction_of

    simulator = None

    def answer(call: Callable[[], Any]) -> None:
        pixels = b""
        try:
            value = call()
            if isinstance(value, np.ndarray):
                pixels, value = np.ascontiguousarray(value, np.uint8).tobytes(), list(value.shape)
            elif isinstance(value, dict):
                value = {
                    name: item.tolist() if isinstance(item, np.ndarray) else item
                    for name, item in value.items()
                }
            state: dict[str, Any] = (
                {}
                if simulator is None
                else {
                    "tcp_pose": simulator.tcp_pose().tolist(),
                    "gripper_width": simulator.gripper_width(),
                    "instruction": instruction_of(simulator) or "",
                    "faults": getattr(simulator, "faults", ()),
                }
            )
            reply = {"value": value, "state": state}
        except Exception as error:  # noqa: BLE001 (whatever it is, the other side must hear of it)
            text = (
                str(error) if isinstance(error, RlinfError) else f"{type(error).__name__}: {error}"
            )
            reply = {"error": type(error).__name__, "text": text}
        file.write(json.dumps(reply).encode() + b"\n" + pixels)
        file.flush()

    def begin() -> dict[str, Any]:
        nonlocal simulator
        built = make()
        if isinstance(built, Arms):
            raise RlinfError(
                "expected one arm for a simulator in its own Python environment, got "
                f"{', '.join(built.arms)}. Several arms are not supported there. Run it in the "
                "main environment"
            )
        simulator = built
        return {
            "tick_s": built.tick_s,
            "cameras": list(built.cameras),
            "joint_names": list(built.joint_names),
            "faulting": hasattr(built, "provoke"),
        }

    def call_method(name: str, arguments: list[Any]) -> Any:
        value = getattr(simulator, name)(*arguments)
        if name == "render":  # a conversion would hide NaN and fractions
            camera, height, width = arguments
            if fault := frames_fault(value, (height, width, CHANNELS)):
                raise RlinfError(f"camera {camera}: {fault}. Correct the simulator's method render")
        return value

    answer(begin)
    for line in file:
        name, *arguments = json.loads(line)
        if name == "advance" and arguments[0] is not None:
            arguments[0] = np.array(arguments[0])
        answer(lambda: call_method(name, arguments))  # noqa: B023 (called at once)


def main() -> None:
    """Run in the other process: ``python -m sim_bridges.core.isolated NAME OPTIONS FD``."""
    from sim_bridges.core.interface import build

    name, options, descriptor = sys.argv[1:]
    threading.Thread(target=end_with, args=(int(descriptor),), daemon=True).start()
    with socket.socket(fileno=int(descriptor)) as connection:
        serve(lambda: build(name, json.loads(options)), connection.makefile("rwb"))


def make(name: str, **options: object) -> Simulator | Arms:
    """Build a simulator by name, in its own virtual environment if it has one.

    Raises:
        RecipeError: no such simulator, or an option that it does not have or not so; with the
            nearest name.
        RlinfError: it is not installed, with the command that installs it.
    """
    from rlinf_core.config.base import constructor_arguments
    from rlinf_core.config.checking import validate
    from rlinf_core.config.yaml_source import Document

    settings = constructor_arguments(
        validate(options_of(name), Document(lists_to_tuples(options), {(): f"simulator '{name}'"}))
    )
    python = python_of(name)
    return IsolatedSimulator(python, name, settings) if python else build(name, settings)


if __name__ == "__main__":
    main()
