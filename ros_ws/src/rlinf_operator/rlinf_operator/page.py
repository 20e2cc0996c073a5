"""The operator's page at a station: its display.

``rlinf_operator.page_requests`` forwards its requests. The page commands nothing. Motion, enable
and labels go to the operator node like those of any device (topic ``page``). Its stop is an e-stop,
``estop/page``. Arming and resets use the interlock's services.
"""

from __future__ import annotations

import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rlinf_msgs.msg import Applied, EpisodeEvent, PolicyStatus, SafetyState, TimeStep, TrainerStatus
from sensor_msgs.msg import Image
from std_msgs.msg import Bool

from rlinf_core.core.errors import SpecError
from rlinf_core.interlock.limits_file import load_limits
from rlinf_core.interlock.types import Mode
from rlinf_core.page.access import Access, Web, token_of
from rlinf_core.page.server import Server
from rlinf_core.page.views import NOBODY_COMMANDS, History, Views, cause_meaning, next_step
from rlinf_core.policies.monitor import PERSON_NEEDED
from rlinf_core.robots.operators.device import LABELS, axes
from rlinf_core.specs.topics import of_arms
from rlinf_core.tasks.task import load_task
from rlinf_operator.page_requests import PageRequests
from rlinf_ros.arms import arm_topic, arms_of, subscribe_arms, subscribe_safety
from rlinf_ros.conversions import from_image
from rlinf_ros.diagnostics import OK, WARN, Diagnostics, Health
from rlinf_ros.latest_messages import Latest
from rlinf_ros.qos import LAZY_PROFILE, received, subscription
from rlinf_ros.spinning import run
from rlinf_ros.station_node import StationNode
from rlinf_ros.station_state import AT_REST, RUN_CONTINUES, publisher_ids
from rlinf_station.director_status import OperatorHealth, status_fields

STATE_S = 0.05
FRAME_S = 1 / 60
POLL_S = 1.0
# an interlock publishes 10 times a second, except in lockstep, where it waits for the simulator
INTERLOCK_SILENCE_S = 3.0
SCENE_S = 2.0  # age at which an object, goal or set-point is no longer drawn, except in lockstep
MARKS = {"object": "object_pose", "goal": "goal_pose", "target": "target_pose"}
# the reference picture of a view that is no camera of the robot
NO_REFERENCE = Path("/dev/null/none")
VIEW_NAMES = {"video": "simulator"}
QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 80]


class Page(StationNode):
    """Shows the station, and forwards requests."""

    def __init__(self) -> None:
        super().__init__("page")
        self.station = self.get_namespace().strip("/")
        self.arms = arms_of(self)
        self.run_dir = Path(self._text_parameter("run_dir"))
        self.cameras = [name for name in self.declare_parameter("cameras", [""]).value if name]
        self.limits = [
            load_limits(Path(path)) for path in self.declare_parameter("limits", [""]).value
        ]
        self.views = [name for name in self.declare_parameter("views", [""]).value if name]
        self.script = self.declare_parameter("script", False).value
        self.policy = PolicyStatus(version=-1)
        self.policy_reported = False
        self.trainer = TrainerStatus()
        self.safety = SafetyState()
        self.health, self.history = OperatorHealth(self), History(self.run_dir / "page.jsonl")
        self.enable = (False, 0.0)
        self.phase = dict[str, Any]()
        self.trouble = ""
        self.episode = self.over = EpisodeEvent(kind=EpisodeEvent.ABORTED)
        self.played = {"operator": 0, "policy": 0}
        self.player = set[tuple[int, ...]]()
        self.poses = of_arms("current_pose", self.arms)
        self.images = {f"camera/{name}/image": place for place, name in enumerate(self.cameras)}
        self.marks = {mark: of_arms(topic, self.arms) for mark, topic in MARKS.items()}
        marked = {topic for topics in self.marks.values() for topic in topics}
        self.latest = Latest(self, {*self.poses, *self.images, *marked}, False)
        self.shown = dict[str, int]()
        # the simulator's views, subscribed while a page is open
        self.view_subscriptions: list[Any] = []
        self.requests = PageRequests(
            self, self.arms, list(self.declare_parameter("first_seeds", [0, 0, 0]).value)
        )
        self.received_at: dict[str, float] = {}
        lockstep = self.declare_parameter("lockstep", False).value
        self.requests.safety_by_arm = subscribe_safety(
            self, self.arms, self._on_safety, at=self.received_at
        )
        self.interlock_silence_s = math.inf if lockstep else INTERLOCK_SILENCE_S
        for topic, callback in (
            ("policy/status", self._on_policy),
            ("episode", self._on_episode),
            ("trainer/status", partial(setattr, self, "trainer")),
            ("applied", self._on_applied),
        ):
            subscribe_arms(self, topic, self.arms, callback)
        subscription(self, "enable", self._on_enable)
        self.timestep_subscription: Any = subscription(
            self, "timestep", self._on_timestep, quality=LAZY_PROFILE
        )
        web = Web(
            host=self._text_parameter("host", "127.0.0.1"),
            port=self.declare_parameter("port", 0).value,
            token_file=self._text_parameter("token_file"),
        )
        references = [
            Path(name) for name in self.declare_parameter("references", [""]).value if name
        ]
        by_name = dict(zip(self.cameras, references, strict=False))
        views = Views(
            [by_name.get(name, NO_REFERENCE) for name in self.views or self.cameras], self._newest
        )
        access, log = Access(self.station, token_of(web)), self.get_logger().info
        self.server = Server(
            self.requests,
            views,
            access,
            web.host,
            web.port,
            log,
            self.run_dir / "page.stopped",
            self.declare_parameter("needs_viewer", False).value,
        )
        self.requests.report = self._report
        self.server.broadcast("station", self._introduction(), keep=True)
        self.server.broadcast("history", self.history.curves(), keep=True)
        for period_s, tick in (
            (STATE_S, self._publish_state),
            (FRAME_S, self._show),
            (POLL_S, self._poll),
        ):
            self.create_timer(period_s, tick)
        self.diagnostics = Diagnostics(self, self._health)

    def _health(self) -> Health:
        """Return the number of open pages and the age of the interlock's state."""
        age_s = time.monotonic() - max(self.received_at.values(), default=-math.inf)
        values = {
            "pages": len(self.server.pages),
            "safety_age_s": round(age_s, 3) if math.isfinite(age_s) else "never",
        }
        if age_s > self.interlock_silence_s:
            return Health(WARN, "receives nothing from the interlock", values)
        return Health(OK, "serves", values)

    def _text_parameter(self, name: str, default: str = "") -> str:
        return str(self.declare_parameter(name, default).value)

    def _introduction(self) -> dict[str, Any]:
        """Return the constants that a page needs."""
        action = load_task(self._text_parameter("task_file")).spec.action
        boxes = [
            {"arm": arm, "low": limits.box_low, "high": limits.box_high}
            for arm, limits in zip(self.arms or [""], self.limits, strict=True)
        ]
        moves = axes(action.of_arm(self.arms[0]) if self.arms else action)
        pictures = self.views or self.cameras
        return {
            "station": self.station,
            "cameras": [VIEW_NAMES.get(name, name) for name in pictures],
            "aligned": self.cameras,
            "boxes": boxes,
            "axes": list(moves),
            "labels": LABELS,
            "joints": action.control_mode == "joint_delta",
            "lease": self.limits[0].enable_lease,
        }

    # Subscriptions
    def _on_safety(self, safety: SafetyState) -> None:
        self.safety = safety
        self.requests.on_safety(safety)

    def _on_policy(self, policy: PolicyStatus) -> None:
        self.policy = policy
        self.policy_reported = True

    def _on_enable(self, message: Bool) -> None:
        self.enable = (message.data, time.monotonic())

    def _on_applied(self, applied: Applied) -> None:
        self.played[applied.source] = self.played.get(applied.source, 0) + 1

    def _on_episode(self, event: EpisodeEvent) -> None:
        if event.kind == EpisodeEvent.STARTED:
            self.played, self.player = {"operator": 0, "policy": 0}, publisher_ids(self, "timestep")
            self.requests.on_episode_begin(event)
        elif event.kind != EpisodeEvent.CLOSED and event.episode_id != self.episode.episode_id:
            return  # the late end of an earlier episode
        if event.kind == EpisodeEvent.ABORTED:
            self._on_aborted(event)
        if event.kind != EpisodeEvent.CLOSED:
            self.episode = event
            return
        steps = max(sum(self.played.values()), 1)
        self.over = event
        try:
            self.history.add(
                mode=event.mode, success=event.success, intervened=self.played["operator"] / steps
            )
        except OSError as error:
            self.get_logger().error(
                f"{self.history.file} cannot be written: {error}. Free the disk"
            )
        self.server.broadcast("history", self.history.curves(), keep=True)

    def _on_aborted(self, event: EpisodeEvent) -> None:
        """Withdraw the request of an aborted episode: a person decides whether to try again."""
        if self.requests.request is not None and self.requests.aborted(event):
            self._report(
                f"The episode ended without a result: {event.detail}. No further episode starts."
            )

    def _report(self, words: str) -> None:
        self.server.broadcast("note", {"what": "start", "well": False, "text": words})

    def _on_timestep(self, step: TimeStep) -> None:
        """Note an episode that began before this process did, from its first message."""
        if (
            self.episode.kind == EpisodeEvent.ABORTED
            and not self.episode.episode_id
            and step.step_type != TimeStep.LAST
        ):
            self.episode = EpisodeEvent(
                kind=EpisodeEvent.STARTED, episode_id=step.episode_id, mode=step.mode
            )
            self.player = publisher_ids(self, "timestep")

    def _poll(self) -> None:
        """Check once a second whether a director runs, and its phase."""
        if self.timestep_subscription and self.episode.episode_id:
            # the images of a view are too costly for a permanent subscription
            self.destroy_subscription(self.timestep_subscription)
            self.timestep_subscription = None
        self.player = self.player or publisher_ids(self, "timestep")
        if self.episode.kind == EpisodeEvent.STARTED and not self.player & publisher_ids(
            self, "timestep"
        ):
            # its environment is gone and will not report it
            self.episode = EpisodeEvent(
                kind=EpisodeEvent.ABORTED, episode_id=self.episode.episode_id
            )
        self.requests.director = "director" in self.get_node_names()
        self.requests.refusals = self._refusals()
        self._watch_views()
        if self.views and self.server.pages:
            self._pull(self.images)  # to compare a camera with its reference
        try:
            self.phase = (
                json.loads((self.run_dir / "status.json").read_text())
                if self.requests.director
                else {}
            )
        except (OSError, ValueError):
            self.phase = {}

    def _refusals(self) -> dict[str, str]:
        """Return why an episode cannot be played now, by mode; empty if it can."""
        refusal = ""
        if not self.count_publishers("policy/action"):
            refusal = "no policy runs at this station."
        elif self.policy_reported and self.policy.version < 0:
            refusal = "no policy has arrived yet. A trainer sends one; until then, demonstrate."
        return {"demonstration": "", "train": refusal, "evaluate": refusal}

    def _watch_views(self) -> None:
        """Subscribe to the simulator's views only while a page is open: it renders on demand."""
        if self.server.pages and not self.view_subscriptions:
            self.view_subscriptions = [
                subscription(
                    self,
                    topic := f"camera/{name}/view",
                    partial(self._on_view, place),
                    quality=received(topic, False),
                )
                for place, name in enumerate(self.views)
            ]
        elif not self.server.pages:
            for subscribed in self.view_subscriptions:
                self.destroy_subscription(subscribed)
            self.view_subscriptions = []

    def _on_view(self, place: int, image: Image) -> None:
        if self.server.watched:
            self.server.show(place, _jpeg(from_image(image)))

    # Published to the page
    def _publish_state(self) -> None:
        if not self.server.pages:
            return
        self._pull([*self.poses, *(topic for topics in self.marks.values() for topic in topics)])
        status = status_fields(self.policy, self.trainer, self.safety, self.health.trouble)
        phase = {
            key: self.phase.get(key)
            for key in ("phase", "done", "total", "successes", "recent_success")
        }
        self.server.broadcast(
            "state",
            status
            | {
                "arms": [
                    self._arm(place, arm, topic)
                    for place, (arm, topic) in enumerate(
                        zip(self.arms or [""], self.poses, strict=True)
                    )
                ],
                "why": self._hold_text(),
                "next": self._next(),
                "may_start": self.requests.may_start(),
                "modes": self.requests.refusals,
                "script": self.script,
                "trouble": self.trouble,
                "director": self.requests.director,
                "phase": phase,
                "prompt": self.health.prompt,
                "episode": self._episode(),
                "enable": {"held": self.enable[0], "age": time.monotonic() - self.enable[1]},
                "heard": self._receives_safety(),
            },
        )

    def _hold_text(self) -> str:
        """Return why the arm is at rest, and whether a run resumes once it is armed."""
        if self.policy.error == PERSON_NEEDED and self.safety.cause == "stale_command":
            return PERSON_NEEDED
        reason = NOBODY_COMMANDS[0] if self._nobody_commands() else cause_meaning(self.safety.cause)
        run_continues = self.requests.director and self.safety.state in AT_REST
        return f"{reason} {RUN_CONTINUES}.".strip() if run_continues else reason

    def _next(self) -> str:
        return NOBODY_COMMANDS[1] if self._nobody_commands() else next_step(self.safety.cause)

    def _nobody_commands(self) -> bool:
        """Return whether the arm rests only because a person let go of it.

        No policy will command then.
        """
        stale = self.safety.state == SafetyState.HOLD and self.safety.cause == "stale_command"
        by_hand = self.episode.mode == "demonstration" or self.episode.kind != EpisodeEvent.STARTED
        return stale and (by_hand or bool(self.requests.refusals.get("train")))

    def _receives_safety(self) -> bool:
        """Return whether the shown states are current: each interlock exists and publishes."""
        now, arms = time.monotonic(), self.arms or [""]
        all_received = all(
            arm in self.received_at and now - self.received_at[arm] < self.interlock_silence_s
            for arm in arms
        )
        return all_received and all(self.count_publishers(arm_topic(arm, "safety")) for arm in arms)

    def _arm(self, place: int, arm: str, topic: str) -> dict[str, Any]:
        safety = self.requests.safety_by_arm.get(arm, SafetyState())
        pose = self.latest.channels.get(topic)
        return {
            "name": arm,
            "state": Mode(safety.state).name,
            "cause": safety.cause,
            "source": safety.source,
            "pose": _numbers(pose),
            **{mark: self._mark(topics[place]) for mark, topics in self.marks.items()},
        }

    def _mark(self, topic: str) -> list[float]:
        """Return a scene object's position [m] in the arm's base frame; empty if unknown."""
        recent = time.monotonic() - self.latest.taken_at[topic] < min(
            SCENE_S, self.interlock_silence_s
        )
        lockstep = self.interlock_silence_s == math.inf
        return _numbers(self.latest.channels.get(topic))[:3] if recent or lockstep else []

    def _episode(self) -> dict[str, Any]:
        playing = self.episode.kind == EpisodeEvent.STARTED
        steps = sum(self.played.values()) // max(len(self.arms), 1)
        return {
            "playing": playing,
            "id": self.episode.episode_id,
            "mode": self.episode.mode,
            "steps": steps,
            "last": {
                "id": self.over.episode_id,
                "success": self.over.success,
                "steps": self.over.steps,
            },
        }

    def _pull(self, topics: Any) -> None:
        try:
            self.latest.pull(topics)
            self.trouble = "" if topics is self.images else self.trouble
        except SpecError as error:
            self.trouble = str(error)

    def _show(self) -> None:
        """Send new frames, encoded once for all pages, while somebody watches."""
        if self.views or not (self.images and self.server.watched):
            return
        self._pull(self.images)
        for topic, place in self.images.items():
            stamp_ns = self.latest.stamps_ns[topic]
            if stamp_ns != self.shown.get(topic, -1):
                self.shown[topic] = stamp_ns
                self.server.show(place, _jpeg(self.latest.channels[topic]))

    def _newest(self, camera: int) -> np.ndarray | None:
        """Return the newest published image of a camera, by its index among the pictures."""
        name = (self.views or self.cameras)[camera]
        return self.latest.channels.get(f"camera/{name}/image")

    def finish(self) -> bool:
        """End the node, disarming first, because its silence would be an e-stop."""
        if self.safety.state in AT_REST or not self.requests.disarm_all():
            self.server.close()
            return True
        return False


def _jpeg(pixels: np.ndarray) -> bytes:
    """Return an RGB picture (H, W, 3) uint8 as JPEG."""
    picture = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2BGR)
    return bytes(cv2.imencode(".jpg", picture, QUALITY)[1].tobytes())


def _numbers(values: np.ndarray | None) -> list[float]:
    return [] if values is None else [round(float(value), 4) for value in values]


def main() -> None:
    """Entry point."""
    cv2.setNumThreads(1)
    # STOP must work even on a busy machine; only control has a higher priority
    run(Page, priority=1)


if __name__ == "__main__":
    main()
