"""The trainer's data: demonstrations and online episodes, filled from the inbox, each episode exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.cluster.governor import Governor
from rlinf_core.episodes import Episode, read_episode
from rlinf_core.episodes.validation import check_episode
from rlinf_core.errors import EpisodeError, printable
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.replay import ReplayBuffer, mix
from rlinf_core.specs import StationSpec

Batch = dict[str, np.ndarray]


class ReplayStore:
    """Two buffers and the set of episodes they were made from.

    Args:
        spec: of the stations this trainer serves; other episodes are refused by name.
        capacity: time steps kept online.
        governor: which online episodes count.
        use_executed: learn from what the interlock let through instead of what was asked for.
        seed: of sampling.
        policy: whose chunks are learned: transitions span what is played of one.
        gamma: discount per time step within a transition.
    """

    def __init__(self, spec: StationSpec, capacity: int, governor: Governor, use_executed: bool = False,
                 seed: int = 0, policy: PolicySettings | None = None, gamma: float = 1.0) -> None:
        self.chunk = {"horizon": policy.horizon, "execute": policy.executed, "gamma": gamma} if policy else {}
        self.spec, self.governor, self.use_executed = spec, governor, use_executed
        self.online = ReplayBuffer(spec, capacity)
        self.demonstrations = ReplayBuffer(spec, min(capacity, 50_000))
        self.random = np.random.default_rng(seed)
        self.ids: dict[str, str] = {}  # episode id -> what became of it
        self.counted = 0  # online transitions that earn updates

    @property
    def longest(self) -> int:
        """Transitions of the longest episode that both buffers can hold."""
        return min(self.online.capacity, self.demonstrations.capacity) - 1

    def insert(self, folder: Path, newest_version: int) -> str:
        """Take one inbox episode; returns what became of it, and never raises. A second time changes nothing."""
        if folder.name in self.ids:
            return "duplicate"
        try:
            fate = self._insert(self._read(folder), newest_version)
        except EpisodeError as error:
            fate = f"refused: {error}"
        except Exception as error:  # no recording may stop a trainer, now and at every restart
            fate = f"refused: episode {folder.name}: cannot be read: {type(error).__name__}: {error}"
        self.ids[folder.name] = fate = printable(fate)
        return fate

    def _read(self, folder: Path) -> Episode:
        episode = read_episode(folder, sealed=True)
        check_episode(episode, self.spec, self.longest)
        if episode.id != folder.name:
            raise EpisodeError(f"episode {folder.name}: expected a recording of that id, got one of {episode.id}. "
                               "It is not trained on")
        return episode

    def _insert(self, episode: Episode, newest_version: int) -> str:
        if episode.mode == "evaluate":
            return "evaluation"
        if episode.mode == "demonstration" and not episode.success:
            return "failed demonstration"
        arrays = self._arrays(episode)
        if episode.mode == "demonstration":
            self.demonstrations.insert_episode(*arrays)
            return "demonstration"
        self.online.insert_episode(*arrays)
        if not self.governor.is_fresh(episode.policy_version, newest_version):
            return "stale"
        self.counted += len(episode)
        if "operator" in episode.sources and episode.success:
            self.demonstrations.insert_episode(*arrays)
        return "online"

    def _arrays(self, episode: Episode) -> tuple[Batch, np.ndarray, np.ndarray, np.ndarray]:
        names = [item.name for item in self.spec.vectors]
        observations = {"vectors": np.concatenate([episode.observations[n] for n in names], axis=1).astype(np.float32)}
        observations |= {image.name: episode.observations[image.name] for image in self.spec.images}
        si = episode.executed if self.use_executed else episode.requested
        actions = np.clip(self.spec.action.from_si(si), -1.0, 1.0)
        return observations, actions, episode.rewards, episode.discounts

    def demonstration_vectors(self) -> np.ndarray:
        """(N, V) vectors of the demonstrations, for normalisation."""
        return self.demonstrations.vectors()

    def sample_demonstrations(self, size: int, count: int) -> list[Batch]:
        """``count`` batches of demonstrations."""
        return [self.demonstrations.sample(size, self.random, **self.chunk) for _ in range(count)]

    def sample(self, size: int, count: int) -> list[Batch]:
        """``count`` batches, online in the first half and demonstrations in the second."""
        half = size // 2
        return [mix(self.online.sample(size - half, self.random, **self.chunk),
                    self.demonstrations.sample(half, self.random, **self.chunk)) for _ in range(count)]

    def counts(self) -> dict[str, int]:
        """Episodes and transitions by kind."""
        fates = list(self.ids.values())
        return {"episodes": len(fates), "demonstrations": self.demonstrations.episodes, "counted": self.counted,
                "online_episodes": self.online.episodes, "online_transitions": self.online.inserted,
                "evaluations": fates.count("evaluation"), "stale": fates.count("stale"),
                "refused": sum(fate.startswith("refused") for fate in fates)}

    def state_dict(self) -> dict[str, Any]:
        """Buffers, ids, counters and random state."""
        return {"online": self.online.state_dict(), "demonstrations": self.demonstrations.state_dict(),
                "ids": list(self.ids.items()), "counted": self.counted, "random": [self.random.bit_generator.state]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if nothing had happened."""
        self.online.load_state_dict(state["online"])
        self.demonstrations.load_state_dict(state["demonstrations"])
        self.ids, self.counted = dict(state["ids"]), state["counted"]
        self.random.bit_generator.state = state["random"][0]
