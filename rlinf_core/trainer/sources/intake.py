"""From recorded episodes to what learners take: each once; what may not be learned from is said, logged and set aside."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.durable import set_aside
from rlinf_core.episodes import Episode, read_episode
from rlinf_core.episodes.validation import check_episode
from rlinf_core.errors import EpisodeError, printable
from rlinf_core.specs import StationSpec
from rlinf_core.trainer.experience import Trajectory

REFUSED = "refused"


class Intake:
    """Takes recordings in and keeps ``trained_on.jsonl``.

    Args:
        run_dir: of the trainer; refused episodes go to its ``refused/``.
        spec: of the stations it serves; other episodes are refused by name.
        longest: transitions of the longest episode that there is room for.
        use_executed: learn from what the interlock let through instead of what was asked for.
    """

    def __init__(self, run_dir: Path, spec: StationSpec, longest: int, use_executed: bool = False) -> None:
        self.run_dir, self.spec, self.longest, self.use_executed = run_dir, spec, longest, use_executed
        self.ids: dict[str, str] = {}  # of episodes, to what became of them

    @property
    def refused(self) -> int:
        """How many may not be learned from."""
        return sum(fate.startswith(REFUSED) for fate in self.ids.values())

    def take(self, folder: Path, insert: Callable[[Trajectory], str], ours: bool = True) -> str:
        """Insert one episode; returns what became of it, and never raises for its sake. A second time changes nothing.

        What is refused is set aside where the folder is ``ours``.
        """
        fate = "duplicate" if folder.name in self.ids else self._inserted(folder, insert)
        with open(self.run_dir / "trained_on.jsonl", "a") as log:
            log.write(json.dumps({"id": folder.name, "fate": fate, "time": time.time()}) + "\n")
        if fate.startswith(REFUSED):
            print(fate, flush=True)
            if ours:
                self._set_aside(folder, fate)
        return fate

    def _inserted(self, folder: Path, insert: Callable[[Trajectory], str]) -> str:
        try:
            fate = insert(trajectory_of(self.read(folder), self.spec, self.use_executed))
        except EpisodeError as error:
            fate = f"{REFUSED}: {error}"
        except Exception as error:  # no recording may stop a trainer, now and at every restart
            fate = f"{REFUSED}: episode {folder.name}: cannot be read: {type(error).__name__}: {error}"
        self.ids[folder.name] = fate = printable(fate)
        return fate

    def read(self, folder: Path) -> Episode:
        """The episode of a folder, if it may be learned from; EpisodeError if not."""
        episode = read_episode(folder, sealed=True)
        check_episode(episode, self.spec, self.longest)
        if episode.id != folder.name:
            raise EpisodeError(f"episode {folder.name}: expected a recording of that id, got one of {episode.id}. "
                               "It is not trained on")
        return episode

    def _set_aside(self, path: Path, fate: str) -> None:
        """Out of the inbox's way; the journal remembers that it arrived."""
        try:
            if path.exists():
                set_aside(path, self.run_dir / REFUSED, fate)
        except OSError as error:  # it stays where it is, and is refused again at the next start
            print(f"{path}: cannot be set aside: {error}", flush=True)

    def state_dict(self) -> dict[str, Any]:
        """Which episodes were taken, and what became of them."""
        return {"ids": list(self.ids.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.ids = dict(state["ids"])


def trajectory_of(episode: Episode, spec: StationSpec, use_executed: bool = False) -> Trajectory:
    """A recorded episode as learners take it."""
    names = [item.name for item in spec.vectors]
    observations = {"vectors": np.concatenate([episode.observations[name] for name in names], axis=1).astype(np.float32)}
    observations |= {image.name: episode.observations[image.name] for image in spec.images}
    si = episode.executed if use_executed else episode.requested
    return Trajectory(observations, np.clip(spec.action.from_si(si), -1.0, 1.0), episode.rewards, episode.discounts,
                      episode.success, episode.mode, episode.sources, episode.policy_version, id=episode.id,
                      station=episode.station)
