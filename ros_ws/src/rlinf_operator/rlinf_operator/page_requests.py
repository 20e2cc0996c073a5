"""Requests of the operator's page to operator, interlock and environment.

They run in the server's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from rclpy.action import ActionClient
from rclpy.client import Client
from rclpy.node import Node
from rclpy.task import Future
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import EpisodeEvent, SafetyState
from rlinf_msgs.srv import ResetFault
from sensor_msgs.msg import Joy
from std_msgs.msg import Bool, Empty, String
from std_srvs.srv import SetBool

from rlinf_core.core.errors import RlinfError
from rlinf_core.page.controls import MODES, MotionInput, Request
from rlinf_core.robots.operators.device import AXES, LABELS
from rlinf_core.robots.operators.page import ACTIVE, BUTTONS, REQUESTED, TAKEOVER
from rlinf_ros.action_clients import GoalHandle
from rlinf_ros.arms import arm_topic, disarm_topics
from rlinf_ros.qos import publisher, subscription
from rlinf_station.labels import AGAIN, DISCARDED

ANSWER_S = 6.0
PASSED_ON_S = 1.0
TRIES = 15
STARTS = (SafetyState.ARMED, SafetyState.ACTIVE)
# causes of holds that end with the next command; between episodes nobody sends one
AWAITS_COMMAND = ("stale_command", "realigning", "handing_back")


class PageRequests:
    """The station, as the server sees it (``rlinf_core.page.server.Station``)."""

    def __init__(self, node: Node, arms: Sequence[str], first_seeds: Sequence[int]) -> None:
        self.node = node
        self.arms = list(arms) or [""]
        self.seeds = dict(zip(MODES, first_seeds, strict=True))
        self.safety_by_arm: dict[str, SafetyState] = {}
        self.director = False
        # reasons why an episode cannot be played now, by mode
        self.refusals = dict.fromkeys(MODES, "")
        self.labelled = 0
        self.disarmings = 0
        self.ending = False
        # reports a failure that no request waits for
        self.report: Callable[[str], None] = lambda words: None
        self.request: GoalHandle | None = None  # the episode that was started here
        self.episode_began_at = float("-inf")  # start of the episode in play
        self.hands = publisher(node, "page")
        self.stop = publisher(node, "estop/page")
        self.arming = [
            node.create_client(SetBool, arm_topic(arm, "interlock/arm")) for arm in self.arms
        ]
        self.resetting = {
            arm: node.create_client(ResetFault, arm_topic(arm, "interlock/reset_fault"))
            for arm in self.arms
        }
        self.disarms = disarm_topics(node, self.arms)
        self.runner = ActionClient(node, RunEpisodes, "run_episodes")
        subscription(node, "label", self._on_label)

    def _on_label(self, _: String) -> None:
        self.labelled += 1

    def move(self, motion: MotionInput) -> None:
        """Publish the page's motion for the operator's process, like that of any device."""
        buttons = [TAKEOVER] if motion.held else []
        if motion.active:
            buttons.append(ACTIVE)
        self._publish(buttons, motion.axes)

    def beat(self, stopped: bool) -> None:
        """Publish this page's e-stop."""
        self.stop.publish(Bool(data=stopped))

    async def handle(self, request: Request) -> str:
        """Execute a request and return its result; an RlinfError gives the reason for a refusal."""
        do: dict[str, Callable[[Request], Coroutine[Any, Any, str]]] = {
            "arm": self._arm,
            "disarm": self._disarm,
            "reset": self._reset,
            "start": self._start,
            "cancel": self._cancel,
            **dict.fromkeys(LABELS, self._label),
        }
        try:
            return await asyncio.wait_for(do[request.what](request), ANSWER_S)
        except asyncio.TimeoutError as error:
            raise RlinfError(
                f"{request.what}: no answer for {ANSWER_S:.0f} s. See the station's logs"
            ) from error

    def disarm_all(self) -> bool:
        """Request every interlock to disarm, at the first call; return False if there is none."""
        ready = [client for client in self.arming if client.service_is_ready()]
        if not self.ending:
            self.ending = True
            self._disarm_now()
            for client in ready:
                client.call_async(SetBool.Request(data=False))
        return bool(ready)

    def on_episode_begin(self, event: EpisodeEvent) -> None:
        """Advance the seed past a started episode, even a discarded one: no scene repeats."""
        self.episode_began_at = time.monotonic()
        if not self.director and event.mode in self.seeds:
            self.seeds[event.mode] = max(self.seeds[event.mode], event.seed + 1)

    def _publish(self, pressed: list[str], axes: Mapping[Any, float] | None = None) -> None:
        self.hands.publish(
            Joy(
                axes=[float((axes or {}).get(axis, 0.0)) for axis in AXES],
                buttons=[int(name in pressed) for name in BUTTONS],
            )
        )

    async def _renew(self) -> None:
        """Renew the enable, because a person has just pressed a button, and let it arrive."""
        self._publish([REQUESTED, ACTIVE])
        await asyncio.sleep(0.1)

    async def _all(self, clients: Sequence[Client], request: Any) -> list[Any]:
        """Call services and return all of their answers."""
        if not all(client.service_is_ready() for client in clients):
            raise RlinfError(f"'{clients[0].srv_name}' is not available. Is the interlock running?")
        return await asyncio.gather(*(_answer(client.call_async(request)) for client in clients))

    def _disarm_now(self) -> None:
        """Disarm by the topic, which needs no answer."""
        for topic in self.disarms:
            topic.publish(Empty())

    async def _arm(self, _: Request) -> str:
        """Arm. A simultaneous disarming takes precedence, in whatever order the two arrive."""
        before, overruled = self.disarmings, RlinfError("a disarming came in between. Arm again")
        await self._renew()
        if self.disarmings != before:
            raise overruled
        try:
            answers = await self._all(self.arming, SetBool.Request(data=True))
        except asyncio.CancelledError:  # an answer is overdue: no arm may be or become armed
            self._disarm_now()
            for client in self.arming:
                client.call_async(SetBool.Request(data=False))
            raise
        refused = [answer.message for answer in answers if not answer.success]
        # either all are armed or none
        if self.disarmings != before or (refused and len(answers) > 1):
            self._disarm_now()
            await self._all(self.arming, SetBool.Request(data=False))
        if refused:
            raise RlinfError("; ".join(refused))
        if self.disarmings != before:
            raise overruled
        return str(answers[0].message)

    async def _disarm(self, _: Request) -> str:
        """Disarm all reachable arms at once; an RlinfError names the others."""
        self.disarmings += 1
        self._disarm_now()
        ready = [client for client in self.arming if client.service_is_ready()]
        answers = await self._all(ready, SetBool.Request(data=False))
        if missing := [client.srv_name for client in self.arming if client not in ready]:
            raise RlinfError(
                f"{len(ready)} disarmed; not available: {', '.join(missing)}. Is the interlock "
                "running?"
            )
        if refused := [answer.message for answer in answers if not answer.success]:
            raise RlinfError("; ".join(refused))
        return str(answers[0].message)

    async def _reset(self, request: Request) -> str:
        await self._renew()
        faulty = [
            self.resetting[arm]
            for arm, state in self.safety_by_arm.items()
            if state.state == SafetyState.FAULT and state.cause == request.cause
        ]
        if not faulty:
            raise RlinfError(f"fault '{request.cause}' is not active")
        for answer in await self._all(faulty, ResetFault.Request(cause=request.cause)):
            if not answer.success:
                raise RlinfError(answer.message)
        return f"FAULT '{request.cause}' is cleared. Arm to move"

    async def _label(self, request: Request) -> str:
        """Label through the operator's process, as a pedal does; report an ignored label.

        A late label renews no enable, because its sender may have gone to the arm. It does not
        judge an episode that its sender had not seen yet.
        """
        if request.what != "ready" and request.shown_at < self.episode_began_at:
            raise RlinfError(
                f"{request.what}: the label was sent before this episode began, so it does not "
                "count. Watch this episode, and label it again"
            )
        before = self.labelled
        is_late = bool(request.late_s(time.monotonic()))
        self._publish([REQUESTED, request.what] if is_late else [REQUESTED, ACTIVE, request.what])
        for _ in range(int(PASSED_ON_S / 0.05)):
            if self.labelled > before:
                return f"labelled: {request.what}"
            await asyncio.sleep(0.05)
        raise RlinfError(
            f"{request.what}: the operator node did not forward it. Is that node running and "
            "without errors?"
        )

    def may_start(self) -> bool:
        """Return whether an episode may start: every arm is armed and waits for nobody.

        A later arming must not start one.
        """
        return all(
            arm in self.safety_by_arm and _may_start(self.safety_by_arm[arm]) for arm in self.arms
        )

    def on_safety(self, safety: SafetyState) -> None:
        """Cancel the episode started here if the interlocks report a fault or a disarming."""
        if self.request is not None and safety.state in (SafetyState.FAULT, SafetyState.DISARMED):
            request = self.request
            self.request = None
            request.withdraw()

    def _on_result(self, request: GoalHandle, answer: Any) -> None:
        """End the request; report one that failed before its episode began."""
        if request is not self.request:
            return
        self.request = None
        if not answer.result.success:
            self.report(
                f"No episode was played: {answer.result.message}. No further episode starts."
            )

    def aborted(self, event: EpisodeEvent) -> bool:
        """Withdraw the request that was started here, unless a person wanted another take.

        Returns:
            Whether a request was withdrawn.
        """
        if event.mode not in self.seeds or event.detail in (AGAIN, DISCARDED):
            return False
        request = self.request
        self.request = None
        if request is not None:
            request.withdraw()
        return request is not None

    async def _start(self, request: Request) -> str:
        if self.director:
            raise RlinfError("a director is running and starts the episodes")
        if refusal := self.refusals.get(request.mode):
            raise RlinfError(f"start: {refusal}")
        if not self.may_start():
            raise RlinfError(
                "start: expected the interlock ARMED or ACTIVE, got DISARMED, HOLD or FAULT. Arm, "
                "then start"
            )
        if not self.runner.server_is_ready():
            raise RlinfError("'run_episodes' is not available. Is the environment running?")
        await self._renew()
        goal = RunEpisodes.Goal(count=1, mode=request.mode, first_seed=self.seeds[request.mode])
        # the previous episode is closed, and the environment will notice soon
        for _ in range(TRIES):
            goal_handle = GoalHandle(self.runner, goal)
            try:
                handle = await self._of_action(goal_handle.send)
            except asyncio.CancelledError:  # no answer in time: it must not begin later
                self._task(goal_handle.withdraw)
                raise
            if handle.accepted:
                break
            await asyncio.sleep(0.3)
        else:
            raise RlinfError("another episode is in play, or the environment is inactive")
        self.seeds[request.mode] = max(self.seeds[request.mode], goal.first_seed + 1)
        if not self.may_start():  # disarmed or at fault meanwhile
            self._task(goal_handle.withdraw)
            raise RlinfError("start: the interlock stopped in between. Arm, then start")
        self.request = goal_handle
        self._task(
            lambda: handle.get_result_async().add_done_callback(
                lambda answer: self._on_result(goal_handle, answer.result())
            )
        )
        return f"an episode begins: {request.mode}"

    async def _cancel(self, _: Request) -> str:
        if self.request is None:
            raise RlinfError("no episode was started from this page")
        await self._of_action(self.request.withdraw)
        self.request = None
        return "no further episode starts. The current one continues to its end or to a label"

    async def _of_action(self, request: Callable[[], Future]) -> Any:
        """Make a request in the ROS thread and return its answer.

        In another thread, an immediate answer would be lost (rclpy#1123).
        """

        def send() -> Future | Exception:
            try:
                return request()
            except Exception as error:  # an exception in a task would end the executor
                return error

        answer = await _answer(self._task(send))
        if isinstance(answer, Exception):
            raise answer
        return await _answer(answer)

    def _task(self, do: Callable[[], Any]) -> Future:
        """Run a function in the ROS thread."""
        executor: Any = self.node.executor
        task: Future = executor.create_task(do)
        return task


async def _answer(future: Future) -> Any:
    """Await an answer of the ROS thread in this thread."""
    local: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def on_done(answered: Future) -> None:
        if local.set_running_or_notify_cancel():  # false if the waiting was cancelled
            local.set_result(answered.result())

    future.add_done_callback(on_done)
    return await asyncio.wrap_future(local)


def _may_start(safety: SafetyState) -> bool:
    awaits_command = safety.state == SafetyState.HOLD and safety.cause in AWAITS_COMMAND
    return safety.state in STARTS or awaits_command
