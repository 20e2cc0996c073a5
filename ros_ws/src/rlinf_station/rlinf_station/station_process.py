"""One process that hosts the nodes of a simulated station in lockstep, on one executor.

``rlinf_ros.memory_bus`` carries their topics. The ``main`` of each node's own module makes it, with
its own ROS arguments. An error names its node, and the exit code tells the supervisor which node
failed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node

from rlinf_core.core.errors import NODE_FAILED, RlinfError
from rlinf_ros.memory_bus import Bus, CallbackError, check_middleware, start
from rlinf_ros.spinning import (
    ARRIVES_S,
    FINISH_S,
    Finishable,
    HasCheck,
    HostNode,
    override_of,
    stop_on_signal,
)
from rlinf_ros.workarounds import LOOK_UP_S, end_soon, single_threaded

COMMANDERS_S = 3.0  # the part of FINISH_S in which commanding and recording nodes finish


class Host:
    """The nodes, ordered so that robot side and interlocks end last."""

    def __init__(self, bus: Bus, specs: list[dict[str, Any]]) -> None:
        self.bus = bus
        self.specs = specs
        self.names: dict[Node, int] = {}  # index of the spec of each node

    def make(self) -> None:
        """Make every node, the interlocks last because they keep time at once.

        Raises:
            SystemExit: a node cannot be made.
        """
        for index, spec in sorted(
            enumerate(self.specs), key=lambda item: "interlock" in item[1]["name"]
        ):
            sys.argv[1:] = self.bus.arguments = spec["arguments"]
            before = len(self.bus.nodes)
            try:
                importlib.import_module(spec["module"]).main()
            except Exception as error:
                self.fail(index, error)
            for node in self.bus.nodes[before:]:
                self.names |= dict.fromkeys(_members(node), index)

    def spin(self, stop_requested: Callable[[], bool]) -> None:
        """Spin until a signal; then let the nodes finish."""
        bus = self.bus
        bus.executor = single_threaded()
        for node in [*self.names, *bus.guests]:
            bus.executor.add_node(node)
        gc.freeze()
        checked = [node for node in bus.nodes if isinstance(node, HasCheck)]
        looked_at = time.monotonic()
        with contextlib.suppress(ExternalShutdownException):
            while not stop_requested():
                self._spin_once(LOOK_UP_S)
                if time.monotonic() - looked_at > LOOK_UP_S:
                    looked_at = time.monotonic()
                    for node in checked:
                        self._call(node, node.check)
            self._finish()
            for publisher in [publisher for node in self.names for publisher in node.publishers]:
                publisher.wait_for_all_acked(Duration(seconds=ARRIVES_S))

    def _finish(self) -> None:
        """Finish commanding and recording nodes first, then robot side and interlocks.

        The supervisor ends several processes in the same order.
        """
        started_at = time.monotonic()
        for last, deadline in ((False, started_at + COMMANDERS_S), (True, started_at + FINISH_S)):
            waiting = [
                node
                for node in self.bus.nodes
                if isinstance(node, Finishable)
                and self.specs[self.names[node]]["ends_station"] == last
            ]
            while (
                waiting := [node for node in waiting if not node.finish()]
            ) and time.monotonic() < deadline:
                self._spin_once(0.02)

    def _spin_once(self, timeout_s: float) -> None:
        try:
            self.bus.spin_once(timeout_s)
        except ExternalShutdownException:
            raise
        except CallbackError as error:
            self.fail(self.names.get(error.node), error.__cause__ or error)
        except Exception as error:
            self.fail(self._failing_node(error.__traceback__), error)

    def _call(self, node: Node, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            self.fail(self.names[node], error)

    def _failing_node(self, trace: TracebackType | None) -> int | None:
        """Return the node whose callback, or whose part's, raised an exception; None if unknown."""
        for frame, _ in traceback.walk_tb(trace):
            owner = frame.f_locals.get("self")
            for candidate in (owner, *getattr(owner, "__dict__", {}).values()):
                if isinstance(candidate, Node) and candidate in self.names:
                    return self.names[candidate]
        return None

    def fail(self, index: int | None, error: BaseException) -> None:
        """End this process: an RlinfError is one line on stderr, any other error a traceback."""
        name = "station" if index is None else self.specs[index]["name"]
        if not isinstance(error, RlinfError):
            traceback.print_exception(type(error), error, error.__traceback__)
        print(
            f"{name}: {error}"
            if isinstance(error, RlinfError)
            else f"{name}: {type(error).__name__}: {error}",
            file=sys.stderr,
            flush=True,
        )
        code = 1 if index is None else NODE_FAILED + index
        end_soon(code)
        raise SystemExit(code) from error


def _members(node: Node) -> Iterator[Node]:
    yield node
    yield from node.guests if isinstance(node, HostNode) else ()


def main() -> None:
    """Run the nodes of the parameter ``nodes``, from a parameter file."""
    faulthandler.enable()
    specs = json.loads(override_of("nodes"))
    sys.argv[1:] = []
    bus = start()
    with stop_on_signal() as stop_requested:
        try:
            check_middleware()
        except RlinfError as error:
            raise SystemExit(str(error)) from error
        host = Host(bus, specs)
        host.make()
        host.spin(stop_requested)
        code = 0 if bus.ended_by is None else NODE_FAILED + host.names[bus.ended_by]
        end_soon(code)
        for node in [*host.names, *bus.guests]:
            node.destroy_node()
        bus.close()
    raise SystemExit(code)


if __name__ == "__main__":
    main()
