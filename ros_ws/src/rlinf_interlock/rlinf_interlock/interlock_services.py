"""The interlock's service process: services, parameters, life cycle, log and persisted latch.

This process may be slow: requests of any size, a disk that syncs, a blocked terminal. The interlock
answers the service process's requests at its next tick. If the service process hangs or dies, the
interlock continues and starts another. ``Channel`` connects the two with JSON objects of bounded
size; neither end ever waits to send one.
"""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rclpy
from rcl_interfaces.msg import FloatingPointRange, ParameterDescriptor, SetParametersResult
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.rcutils_logger import RcutilsLogger
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions
from rlinf_msgs.srv import ResetFault
from std_srvs.srv import SetBool

from rlinf_core.core.errors import RlinfError
from rlinf_core.interlock import Limits, Mode, load_limits
from rlinf_core.interlock.latch import Latch
from rlinf_core.interlock.limits import FIXED, TABLE
from rlinf_ros.escaping import escape_logs
from rlinf_ros.lifecycle_node import FAILURE, SUCCESS, SafeTransitions
from rlinf_ros.parameters import descriptor as described
from rlinf_ros.parameters import finite
from rlinf_ros.workarounds import end_soon

MAX_BYTES = 60_000
TAKEN_S = 3.0  # a request older than this is refused; the service process waits longer
# prefix of the answer to a reset that only the robot's own fault forbids
ROBOT_FAULT_PREFIX = "robot's own; "
Message = dict[str, Any]


class Channel:
    """One end of the connection.

    Messages that do not fit into it are lost and counted, because the control loop never waits.

    Args:
        end: end of a socket pair of kind SOCK_SEQPACKET.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.lost = 0
        self.open = True
        end.setblocking(False)

    def send(self, message: Message) -> bool:
        """Send a message; return whether it was handed to the socket."""
        raw = json.dumps(message).encode()
        if self.open and len(raw) <= MAX_BYTES:
            with contextlib.suppress(BlockingIOError):
                try:
                    self._end.send(raw)
                    return True
                except (BrokenPipeError, ConnectionError):
                    self.open = False
        self.lost += 1
        return False

    def receive(self, limit: int = 20) -> list[Message]:
        """Return the messages that have come, up to a maximum number."""
        messages: list[Message] = []
        while self.open and len(messages) < limit:
            try:
                raw = self._end.recv(MAX_BYTES + 1)
            except BlockingIOError:
                break
            except ConnectionError:
                raw = b""
            if raw:
                messages.append(json.loads(raw))
            else:
                self.open = False
        return messages

    def wait(self, seconds: float) -> None:
        """Wait for a message, at most ``seconds``."""
        select.select([self._end], [], [], seconds)

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        self._end.close()


ANSWER_S = 5.0  # a lifecycle shutdown brakes first
REPLACED = (
    "describe_parameters",
    "get_parameter_types",
    "get_parameters",
    "list_parameters",
    "set_parameters",
    "set_parameters_atomically",
    "change_state",
    "get_state",
    "get_available_states",
    "get_available_transitions",
    "get_transition_graph",
)
NO_ANSWER = "no answer from the interlock"
REQUESTS_CLOSED = "the interlock accepts no requests now. Try again"
MAX_PARAMETERS = 64  # in one request
BEAT_S, HANGS_S = 0.1, 0.7
FILE_CHECK_S = 5.0  # between two checks of the limits file
# longest silence on a busy machine of a service process that waits for the CPU
STARVED_S = 10.0
STARTS_S = 60.0  # longest time until the first beat
# the service process does not inherit the interlock's real-time scheduling
START = (
    "import os; os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)); os.nice(5); "
    "from rlinf_interlock.interlock_services import main; main()"
)


class ServiceProcess:
    """The interlock's side: the process and its messages. It never waits."""

    def __init__(self, settings: dict[str, Any], limits: Limits) -> None:
        self._hello = {
            "settings": settings,
            "limits": _tuples_to_lists(asdict(limits)),
            "file_hash": limits.hash,
        }
        self._disarmed = -1
        self.checked_s = time.monotonic()
        self._arguments = sys.argv[1:] if "--ros-args" in sys.argv else ["--ros-args"]
        self._open(0, settings["autostart"])

    def _open(self, armings: int, active: bool) -> None:
        socket_here, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        remaps = [
            item
            for name in REPLACED
            for item in ("-r", f"interlock_services/{name}:=interlock/{name}")
        ]
        remaps += ["-r", "~/transition_event:=interlock/transition_event"]
        arguments = self._arguments
        place = arguments.index("--ros-args") + 1
        command = [
            sys.executable,
            "-c",
            START,
            str(child_socket.fileno()),
            *arguments[:place],
            "-r",
            "__node:=interlock_services",
            *remaps,
            *arguments[place:],
        ]
        # the process handles signals once it has imported rlinf
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self.process = subprocess.Popen(
                command, pass_fds=[child_socket.fileno()], stdin=subprocess.DEVNULL
            )
        except OSError:
            socket_here.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            child_socket.close()
        self.channel = Channel(socket_here)
        self.opened = time.monotonic()
        self.beat_s = math.inf
        self._requests: list[Message] = []
        self.channel.send({"hello": self._hello | {"armings": armings, "active": active}})

    def replace_if_dead(self, armings: int, active: bool) -> bool:
        """Replace a service process that has died or hangs, also while the arm moves.

        Call it several times a second.

        Args:
            armings: number of arming requests so far; the new process continues to count from it.
            active: life cycle of the interlock, which the new process reports.

        Returns:
            Whether it was replaced.
        """
        ended = self.process.poll() is not None
        must_replace = time.monotonic() - self.opened > 2.0 if ended else self._hangs()
        if not must_replace:
            return False
        if not ended:
            self.process.kill()
        self.channel.close()
        self._disarmed = -1
        try:
            self._open(armings, active)
        except OSError:  # no process available now: retry in a second; the interlock goes on
            self.opened = time.monotonic()
        return True

    def requests(self) -> list[Message]:
        """Return all requests since the last call."""
        self._receive()
        requests = self._requests
        self._requests = []
        return requests

    def _receive(self) -> None:
        for message in self.channel.receive():
            if "beat" in message:
                self.beat_s = time.monotonic()
            else:
                self._requests.append(message)

    def _hangs(self) -> bool:
        """Return whether the process is stopped, or its main loop hangs although it has the CPU."""
        self._receive()
        now, before_s = time.monotonic(), self.checked_s
        self.checked_s = now
        if math.isinf(self.beat_s):
            return now - self.opened > STARTS_S
        if now - before_s > HANGS_S / 2:  # this process itself stalled, perhaps with all others
            self.beat_s = now
        silent_s = now - self.beat_s
        return silent_s > STARVED_S or (silent_s > HANGS_S and not _is_starved(self.process.pid))

    def reply(self, number: int, reason: str) -> None:
        """Answer one request; an empty reason means success."""
        self.channel.send({"reply": number, "reason": reason})

    def log(self, level: str, text: str) -> None:
        """Log one line through the service process.

        It is lost if the service process does not read.
        """
        self.channel.send({"log": level, "text": text[:4000]})

    def set_limits(self, limits: Limits) -> None:
        """Store the limits that a replacement of a dead service process will report."""
        self._hello["limits"] = _tuples_to_lists(asdict(limits))

    def report_disarmed(self, armings: int) -> None:
        """Report that the arm is at rest and disarmed.

        ``armings`` counts the arming requests handled so far.
        """
        if armings != self._disarmed:
            self._disarmed = armings if self.channel.send({"disarmed": armings}) else -1

    def close(self) -> None:
        """Close the connection; the service process finishes its writing and ends."""
        self.channel.close()


def _is_starved(pid: int) -> bool:
    """Return whether a thread of a process waits for a CPU or disk, and is silent for that."""
    try:
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{pid}/task").iterdir()
        ]
    except (OSError, IndexError):
        return False
    return any(state in "RD" for state in states)


def _tuples_to_lists(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as parameters and JSON hold them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value != ()
    }


class InterlockClient:
    """The service process's side of the channel: requests to the interlock, and its messages."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.last_id = 0
        self.armings = 0
        self.answers: dict[int, str] = {}
        self.lines: deque[tuple[str, str]] = deque(maxlen=1000)
        self.hello: dict[str, Any] | None = None
        self.latch = Latch("")
        self.writing = False
        self.listened_s = time.monotonic()

    def beat(self) -> None:
        """Send beats, from a thread, while this process runs and its main loop does not hang."""
        while self.channel.open:
            if self.writing or time.monotonic() - self.listened_s < HANGS_S:
                self.channel.send({"beat": True})
            time.sleep(BEAT_S)

    def listen(self) -> None:
        """Process received messages."""
        self.listened_s = time.monotonic()
        for message in self.channel.receive(1000):
            if "hello" in message:
                self.hello = message["hello"]
                self.armings = self.hello["armings"]
                self.latch = Latch(self.hello["settings"]["latch_file"])
            elif "reply" in message:
                self.answers[message["reply"]] = message["reason"]
            elif "log" in message:
                self.lines.append((message["log"], message["text"]))
            # a report older than the last arming means nothing
            elif message.get("disarmed") == self.armings:
                self._write(Mode.DISARMED)

    def _write(self, mode: Mode) -> str:
        """Write the latch, however slow the disk is; return the reason for a failure, or ""."""
        self.writing = True
        try:
            return self.latch.write(mode.name)
        finally:
            self.writing = False
            self.listened_s = time.monotonic()

    def request(self, command: str, arrival_s: float | None = None, **values: Any) -> str:
        """Ask the interlock; return an empty string for success, else the reason.

        The message's keys are ``id``, ``do`` (the command), ``with`` (its arguments) and ``asked``
        (the arrival).

        Args:
            command: one of ``interlock_requests.Requests.handlers``.
            arrival_s: arrival of the request at this process [s, CLOCK_MONOTONIC]; now, if None.
            values: the request's arguments.
        """
        self.last_id += 1
        number, arrival_s = self.last_id, time.monotonic() if arrival_s is None else arrival_s
        if not self.channel.send({"id": number, "do": command, "with": values, "asked": arrival_s}):
            return REQUESTS_CLOSED
        end = time.monotonic() + ANSWER_S
        while number not in self.answers:
            if time.monotonic() > end or not self.channel.open:
                return f"{NO_ANSWER} within {ANSWER_S:.0f} s. Is it stopped, or about to end?"
            self.channel.wait(0.05)
            self.listen()
        return self.answers.pop(number)

    def arm(self, value: bool) -> str:
        """Arm or disarm; write the latch before the arm is armed."""
        if not value:
            return self.request("arm", value=False)
        # a slow disk does not make the request younger
        arrival_s, before = time.monotonic(), self.latch.written_mode
        reason = self._write(Mode.ARMED)
        if reason:
            return reason
        self.armings += 1
        reason = self.request("arm", arrival_s, value=True)
        # the interlock counts every request that reached it, whatever its answer
        if reason == REQUESTS_CLOSED:
            self.armings -= 1
        # refused: restore the latch
        if reason and before == Mode.DISARMED.name and not reason.startswith(NO_ANSWER):
            self._write(Mode.DISARMED)
        return reason


class LimitsFileWatch:
    """Notices a limits file that changes during a run, also behind a symbolic link.

    The loaded limits stay in force.

    Args:
        path: of the limits file, as the interlock received it.
        loaded: hash of the limits that the interlock read there.
    """

    def __init__(self, path: str, loaded: str) -> None:
        self.path = path
        self.loaded = loaded
        self.last = loaded

    def check(self) -> str:
        """Return a warning if the file has changed since the last call; else an empty string."""
        try:
            now = load_limits(self.path).hash
        except (RlinfError, OSError, ValueError) as error:
            now = f"unreadable: {error}"
        before = self.last
        self.last = now
        if now == before:
            return ""
        if now == self.loaded:
            return (
                f"{self.path} has limits {now} again. They are in force unless parameters were "
                "changed since"
            )
        holds = now if now.startswith("unreadable") else f"holds limits {now}"
        return (
            f"{self.path} ({os.path.realpath(self.path)}) {holds} now. The limits {self.loaded} "
            "from the start stay in force, with later changes by parameter. Restart the station "
            "to load the file"
        )

    def run(self, front: InterlockClient) -> None:
        """Check repeatedly; call it in a thread, because a disk may be slow."""
        while front.channel.open:
            if warning := self.check():
                front.lines.append(("warning", warning))
            time.sleep(FILE_CHECK_S)


def main() -> None:
    """Run the service process; the interlock starts it with the connection's file descriptor."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when the interlock closes the connection
    front = InterlockClient(Channel(socket.socket(fileno=int(sys.argv[1]))))
    while front.hello is None:
        front.channel.wait(1.0)
        front.listen()
        if not front.channel.open:
            return

    serve(front)


def describe(name: str) -> tuple[str, bool]:
    """Return a limit's meaning for people, and whether it never changes."""
    metadata = TABLE[name].metadata
    unit = f" [{metadata['unit']}]" if metadata["unit"] else ""
    return f"{metadata['meaning']}{unit}", metadata["tighter"] == FIXED


ARRIVES_S = 1.0  # time for the answer to a shutdown on a busy machine
AT_ONCE_S = 0.05  # a request read this soon after another may have arrived during its answer
RECOVERY_START_S = 1.0  # a robot reports within this time that it recovers
RECOVERS_S = 5.0  # longest recovery; afterwards the person resets again
WAITED = (
    f"refused: the request waited more than {TAKEN_S:g} s behind others, for example a reset. Its "
    "sender may no longer expect it. Try again"
)
REQUESTER_LOST = "the client left before the answer. Arm again"


class Services(SafeTransitions, LifecycleNode):
    """A managed node: configured from the start, and active while the interlock is.

    It ends once the interlock has braked and ended.
    """

    def __init__(self, front: InterlockClient) -> None:
        super().__init__(
            "interlock_services",
            parameter_overrides=[Parameter("start_type_description_service", value=False)],
        )
        escape_logs(self)
        self.front = front
        self.starting = True
        self.ending = False
        self.busy_since = self.busy_until = 0.0  # busy with one request after the other
        self.turn_began = time.monotonic()
        hello = front.hello or {}
        settings, limits = hello["settings"], hello["limits"]
        for name, value in settings.items():
            self.declare_parameter(name, value, described(name, value), ignore_override=True)
        for name, value in limits.items():
            meaning, read_only = describe(name)
            self.declare_parameter(
                f"limits.{name}",
                value,
                ParameterDescriptor(
                    description=meaning,
                    read_only=read_only,
                    floating_point_range=_range(name, value),
                ),
                ignore_override=True,
            )
        self.add_on_set_parameters_callback(self._on_parameters)
        self.create_service(SetBool, "interlock/arm", self._on_arm)
        self.create_service(ResetFault, "interlock/reset_fault", self._on_reset)
        self.trigger_configure()
        if hello["active"]:
            self.trigger_activate()
        self.starting = False

    def turned(self, started_at: float) -> None:
        """Note the end of an executor's turn; its requests may have taken long."""
        now = time.monotonic()
        if now - started_at > AT_ONCE_S:
            self.busy_since = (
                self.busy_since if started_at - self.busy_until < AT_ONCE_S else started_at
            )
            self.busy_until = now

    def _waited(self) -> bool:
        """Return whether a request may have waited until its sender gave up."""
        now = time.monotonic()
        # the process was stopped while it waited for this request
        was_suspended = now - self.turn_began > TAKEN_S
        return was_suspended or (
            self.busy_until - self.busy_since > TAKEN_S and now - self.busy_until < AT_ONCE_S
        )

    def _on_arm(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        reason = WAITED if request.data and self._waited() else self.front.arm(request.data)
        if request.data and not reason and not self.count_clients("interlock/arm"):
            self.front.arm(False)  # the sender has gone and would not learn that the arm is armed
            reason = REQUESTER_LOST
            self.get_logger().warning(f"the arming is cancelled: {REQUESTER_LOST}")
        word = "arm" if request.data else "disarm"
        response.success = not reason
        response.message = f"cannot {word}: {reason}" if reason else f"{word}ing"
        return response

    def _on_reset(
        self, request: ResetFault.Request, response: ResetFault.Response
    ) -> ResetFault.Response:
        cause = request.cause[:300]
        reason = self._await_recovery(cause, self.front.request("reset", cause=cause))
        reason = reason.removeprefix(ROBOT_FAULT_PREFIX)
        response.success = not reason
        response.message = reason or "cleared; arm again to move"
        return response

    def _await_recovery(self, cause: str, reason: str) -> str:
        """Return a reset's answer, after a recovery if only the robot's fault forbids it (S17)."""
        first, started_at = reason, time.monotonic()
        while reason.startswith(ROBOT_FAULT_PREFIX):
            longest_s = RECOVERY_START_S if reason == first else RECOVERS_S
            if time.monotonic() - started_at >= longest_s:
                break
            time.sleep(0.1)
            reason = self.front.request("reset", cause=cause, recovering=True)
        return reason

    def _on_parameters(self, parameters: list[Parameter]) -> SetParametersResult:
        changes = {}
        for parameter in parameters:
            if parameter.name.startswith("limits."):
                value = parameter.value
                numbers = list(value) if isinstance(value, array.array) else value
                changes[parameter.name.removeprefix("limits.")] = finite(numbers)
        if not changes:
            return SetParametersResult(successful=True)
        if len(changes) > MAX_PARAMETERS:
            return SetParametersResult(
                successful=False,
                reason=f"expected at most {MAX_PARAMETERS} limits at once, got {len(changes)}",
            )
        reason = self.front.request("limits", values=changes)
        return SetParametersResult(successful=not reason, reason=reason)

    # Life cycle
    def on_configure(self, _: LifecycleState) -> TransitionCallbackReturn:
        return SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        if not self.starting and not self._request("activate"):
            return FAILURE
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return super().on_deactivate(state) if self._request("deactivate") else FAILURE

    def on_cleanup(self, _: LifecycleState) -> TransitionCallbackReturn:
        self.get_logger().error(
            "the interlock is configured once. Restart the process to read its limits again"
        )
        return FAILURE

    def on_shutdown(self, _: LifecycleState) -> TransitionCallbackReturn:
        self.front.last_id += 1
        self.ending = True
        return SUCCESS if self._request("shutdown", id=self.front.last_id + 1) else FAILURE

    def _request(self, command: str, **values: Any) -> bool:
        """Ask the interlock for a transition; return whether it granted it."""
        reason = self.front.request(command, **values)
        if reason:
            self.get_logger().error(reason)
        return not reason


def _range(name: str, value: Any) -> list[FloatingPointRange]:
    low, high = TABLE[name].metadata["range"][0], TABLE[name].metadata["range"][-1]
    if not isinstance(value, float) or value == float("inf"):
        return []
    return [FloatingPointRange(from_value=float(low), to_value=float(high))]


def log_line(logger: RcutilsLogger, level: str, text: str) -> None:
    """Log one line; rclpy allows each call site only one severity."""
    if level == "fatal":
        logger.fatal(text)
    elif level == "error":
        logger.error(text)
    elif level == "warning":
        logger.warning(text)
    else:
        logger.info(text)


def serve(front: InterlockClient) -> None:
    """Serve until the interlock closes the connection."""
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = Services(front)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    logger = node.get_logger()
    threading.Thread(target=front.beat, daemon=True).start()
    hello = front.hello or {}
    watch = LimitsFileWatch(hello["settings"]["limits_file"], hello["file_hash"])
    threading.Thread(target=watch.run, args=(front,), daemon=True).start()
    with contextlib.suppress(ExternalShutdownException):
        while front.channel.open:
            started_at = node.turn_began = time.monotonic()
            try:
                executor.spin_once(timeout_sec=0.02)
            except ExternalShutdownException:
                raise
            except Exception as error:  # a failed request must not prevent the next answer
                logger.error(f"a request failed: {type(error).__name__}: {error}")
            node.turned(started_at)
            front.listen()
            while front.lines:
                level, text = front.lines.popleft()
                log_line(logger, level, text)
    if node.ending:
        time.sleep(ARRIVES_S)  # the answer stays in this process until its client has taken it
    end_soon(0)
    executor.shutdown()
    rclpy.try_shutdown()
