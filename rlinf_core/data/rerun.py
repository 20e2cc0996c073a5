"""Export recordings to Rerun's viewer: one ``.rrd`` per episode, with an initial layout.

There are two timelines: ``time``, by the messages' own stamps, from the first time step on, and
``step``, which counts time steps. Entities:

    world/tool, world/target            measured and commanded pose, as transforms; _path as lines
    camera/<name>                       its sampled images, as recorded
    observation/<name>                  the policy's input: vectors as plots, images to the last bit
    action/requested, action/executed   as plots
    episode/reward, episode/takeover    the latter is 1 while the operator commands
    safety/state, safety/log            the interlock's state as number and text, refusals, limits
    episode/log                         each change of the commander, and the outcome

If there are several arms, an arm's entities stand below its name: ``world/left/tool``,
``safety/left/state``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rerun as rr
import rerun.blueprint as rrb

from rlinf_core.core.errors import EpisodeError, escape_ascii
from rlinf_core.data.episodes import episode_spec, intact_episodes
from rlinf_core.data.folders import new_folder
from rlinf_core.episodes import Episode
from rlinf_core.episodes.checksums import is_plain
from rlinf_core.episodes.messages import COMPRESSED, POSE, store_for, to_ns
from rlinf_core.interlock.types import Mode
from rlinf_core.reports.recordings import outcome
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.specs.topics import arm_of

# entity, and colour of its path
POSES = {"current_pose": ("tool", (80, 160, 250)), "target_pose": ("target", (250, 160, 60))}
STATE, EVENT = "rlinf_msgs/msg/SafetyState", "rlinf_msgs/msg/SafetyEvent"
SHOWN_TYPES = (COMPRESSED, POSE, STATE, EVENT)
LEVELS = {Mode.HOLD: rr.TextLogLevel.WARN, Mode.FAULT: rr.TextLogLevel.ERROR}
AXES_M = 0.05


def export(paths: list[Path], out: Path, recipe: str | None = None) -> int:
    """Write every whole episode below some folders to a separate file in a new folder.

    Args:
        paths: the recordings.
        out: a new folder.
        recipe: recipe of the recording station, for names; by default that of the run around the
            recordings.

    Returns:
        The number of episodes.

    Raises:
        EpisodeError: the specs differ, or an episode is damaged; the message names it.
    """
    count = 0
    with new_folder(out) as root:
        for folder, episode in intact_episodes(paths):
            if not is_plain(episode.id):
                raise EpisodeError(
                    f"{folder}: expected an episode id that is valid as a file name, got "
                    f"{escape_ascii(episode.id)}"
                )
            (root / f"{episode.id}.rrd").write_bytes(
                RerunEpisode(episode, episode_spec(episode, folder, recipe)).to_bytes(folder)
            )
            count += 1
    return count


class RerunEpisode:
    """One episode in Rerun's form."""

    def __init__(self, episode: Episode, spec: StationSpec) -> None:
        self.episode, self.spec = episode, spec
        self.stream = rr.RecordingStream(f"rlinf {episode.station}", recording_id=episode.id)
        self.memory = self.stream.memory_recording()
        self.paths: dict[str, list[list[float]]] = {}  # path of each tool and target
        self.cameras: set[str] = set()
        self.last_states: dict[str, tuple[str, str]] = {}  # state and cause of each interlock

    def to_bytes(self, folder: Path) -> bytes:
        """Return the content of the ``.rrd`` file; ``folder`` holds the recording's messages."""
        self._log_description()
        self._log_plots()
        self._log_images()
        for name, at_ns, message in messages(folder):
            if message is None:
                self._log_text(at_ns, f"{name}: an unreadable message")
            else:
                self._log_message(name, message)
        self._draw_paths()
        self.stream.send_blueprint(self._layout())
        return bytes(self.memory.drain_as_bytes())

    def _log_description(self) -> None:
        episode = self.episode
        instruction = ", then ".join(dict.fromkeys(episode.instructions))
        rows = {
            "outcome": outcome(episode),
            "instruction": instruction,
            "mode": episode.mode,
            "seed": episode.seed,
            "station": episode.station,
            "policy version": episode.policy_version,
            "limits": episode.limits_hash,
            "specs": episode.spec_hash,
        }
        text = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
        self._log_static(
            "episode",
            rr.TextDocument(
                f"| episode | {episode.id} |\n|---|---|\n{text}", media_type=rr.MediaType.MARKDOWN
            ),
        )

    def _log_plots(self) -> None:
        episode, action = self.episode, self.spec.action
        sources = np.array([source == "operator" for source in episode.sources], float)
        for item in self.spec.vectors:
            self._plot(
                f"observation/{item.name}",
                episode.observations[item.name].reshape(len(episode) + 1, -1),
            )
        self._plot("action/requested", episode.requested, action.names)
        self._plot("action/executed", episode.executed, action.names)
        self._plot("episode/reward", episode.rewards[:, None], first=1)
        self._plot("episode/takeover", sources[:, None])
        for step, source in enumerate(episode.sources):
            if not step or source != episode.sources[step - 1]:
                self._set_step(step)
                self.stream.log(
                    "episode/log",
                    rr.TextLog(f"{source or 'nobody'} commands", level=rr.TextLogLevel.INFO),
                )
        self._set_step(len(episode))
        self.stream.log("episode/log", rr.TextLog(outcome(episode), level=rr.TextLogLevel.INFO))

    def _plot(
        self, entity: str, values: np.ndarray, names: Sequence[str] = (), first: int = 0
    ) -> None:
        """Plot rows (N, D) of the time steps from ``first`` on."""
        if not values.shape[1]:
            return
        names = names or (
            [f"{index}" for index in range(values.shape[1])] if values.shape[1] > 1 else [""]
        )
        label = entity.partition("/")[2]
        self._log_static(
            entity, rr.SeriesLines(names=[f"{label} {name}".strip() for name in names])
        )
        steps = np.arange(first, first + len(values))
        since = self.episode.stamps_ns[steps] - self.episode.stamps_ns[0]
        rr.send_columns(
            entity,
            [
                rr.TimeColumn("step", sequence=steps),
                rr.TimeColumn("time", duration=since.astype("timedelta64[ns]")),
            ],
            rr.Scalars.columns(scalars=values.astype(float)),
            recording=self.stream,
        )

    def _log_images(self) -> None:
        for item in self.spec.images:
            for step, pixels in enumerate(self.episode.observations[item.name]):
                self._set_step(step)
                self.stream.log(f"observation/{item.name}", rr.Image(pixels))

    def _log_message(self, name: str, message: Any) -> None:
        """Show a message by its topic's name in the station."""
        arm, kind = arm_of(name), message.__msgtype__
        self.stream.reset_time()
        self._set_time(to_ns(message.header.stamp))
        if kind == POSE:
            self._log_pose(arm_entity("world", arm), name.removeprefix(f"{arm}/"), message.pose)
        elif kind == COMPRESSED and name.startswith("camera/"):
            entity = "/".join(name.split("/")[:2])
            self.cameras.add(entity)
            self.stream.log(
                entity, rr.EncodedImage(contents=message.data.tobytes(), media_type="image/jpeg")
            )
        elif kind == STATE:
            self._log_state(arm_entity("safety", arm), message)
        elif kind == EVENT:
            self.stream.log(
                f"{arm_entity('safety', arm)}/log",
                rr.TextLog(f"{message.kind} {message.cause}", level=rr.TextLogLevel.DEBUG),
            )

    def _log_pose(self, entity: str, topic: str, pose: Any) -> None:
        if topic not in POSES:
            return
        place, turn = pose.position, pose.orientation
        # rr.Quaternion needs NumPy 2: docs/contribute/workarounds.md
        turned: Any = [turn.x, turn.y, turn.z, turn.w]
        entity = f"{entity}/{POSES[topic][0]}"
        self.paths.setdefault(entity, []).append([place.x, place.y, place.z])
        self.stream.log(
            entity,
            rr.Transform3D(
                translation=self.paths[entity][-1], axis_length=AXES_M, quaternion=turned
            ),
        )

    def _log_state(self, entity: str, message: Any) -> None:
        mode = Mode(message.state)
        state_text = (f"{mode.name} {message.source}".strip(), message.cause)
        self.stream.log(f"{entity}/state", rr.Scalars(float(mode)))
        if state_text != self.last_states.get(entity):
            self.stream.log(
                f"{entity}/log",
                rr.TextLog(
                    ": ".join(filter(None, state_text)),
                    level=LEVELS.get(mode, rr.TextLogLevel.INFO),
                ),
            )
        self.last_states[entity] = state_text

    def _draw_paths(self) -> None:
        colours = dict(POSES.values())
        for entity, places in self.paths.items():
            self._log_static(
                f"{entity}_path",
                rr.LineStrips3D([places], colors=[colours[entity.rpartition("/")[2]]]),
            )

    def _log_text(self, at_ns: int, text: str) -> None:
        self.stream.reset_time()
        self._set_time(at_ns)
        self.stream.log("episode/log", rr.TextLog(text, level=rr.TextLogLevel.WARN))

    def _set_step(self, step: int) -> None:
        self.stream.set_time("step", sequence=step)
        self._set_time(self.episode.stamps_ns[step])

    def _set_time(self, stamp_ns: int) -> None:
        self.stream.set_time(
            "time", duration=np.timedelta64(int(stamp_ns - self.episode.stamps_ns[0]), "ns")
        )

    def _log_static(self, entity: str, shown: Any) -> None:
        self.stream.log(entity, shown, static=True)

    def _layout(self) -> rrb.Blueprint:
        pictures = sorted(self.cameras) or [
            f"observation/{image.name}" for image in self.spec.images
        ]
        world = [rrb.Spatial3DView(origin="world", name="arm")] if self.paths else []
        views = [*world, *(rrb.Spatial2DView(origin=entity, name=entity) for entity in pictures)]
        vectors = [f"observation/{item.name}" for item in self.spec.vectors]
        plots = [
            rrb.TimeSeriesView(contents=vectors, name="observation"),
            rrb.TimeSeriesView(origin="action", name="action"),
            rrb.TimeSeriesView(
                contents=["episode/reward", "episode/takeover", "safety/**"],
                name="reward and safety",
            ),
        ]
        words = [
            rrb.TextLogView(contents=["safety/**", "episode/log"], name="what happened"),
            rrb.TextDocumentView(origin="episode", name="episode"),
        ]
        rows = [rrb.Horizontal(*row) for row in (views, plots, words) if row]
        return rrb.Blueprint(rrb.Vertical(*rows), collapse_panels=True)


def arm_entity(entity: str, arm: str) -> str:
    """Return an arm's entity, if there are several arms."""
    return f"{entity}/{arm}" if arm else entity


def messages(folder: Path) -> Iterator[tuple[str, int, Any]]:
    """Yield the messages to show: the topic's name in the station, the time, and the message.

    The message is None if it cannot be read.
    """
    from rosbags.rosbag2 import Reader

    with Reader(folder) as reader:
        shown = [
            connection for connection in reader.connections if connection.msgtype in SHOWN_TYPES
        ]
        for connection, at_ns, raw in reader.messages(shown) if shown else ():
            store = store_for(((connection.msgtype, connection.msgdef.data),))
            try:
                message = store.deserialize_cdr(raw, connection.msgtype)
            except Exception:  # a broken message, recorded unchanged, may raise anything
                message = None
            yield connection.topic.strip("/").partition("/")[2], at_ns, message
