"""Batches that are drawn ahead are those that would be drawn without, and none is drawn too early
or lost.
"""

import contextlib
import threading
import time

import numpy as np
import pytest
import torch

from rlinf_core.episodes.spool import Spool
from rlinf_core.policies.serialization import load_policy
from rlinf_core.reports.curves import read_evaluations
from rlinf_core.rollouts.types import Trajectory
from rlinf_core.trainer import prefetch as prefetching
from rlinf_core.trainer.prefetch import PREFETCHED_BATCHES, Prefetch, make_prefetch
from rlinf_core.trainer.train import train
from tests.algorithms.by_hand import pictures
from tests.algorithms.point import SPEC, Points
from tests.trainer.test_run import begun, run_of, shown
from tests.trainer.test_simulators import recipe_of

pytestmark = pytest.mark.timed

CPU = torch.device("cpu")


def points(recipe, size):
    return Points(size)


class Counted:
    """Draws numbers; knows how many, and in which threads."""

    def __init__(self, wrong=None):
        self.drawn, self.threads, self.wrong = 0, set(), wrong

    def __call__(self):
        self.threads.add(threading.get_ident())
        if self.drawn == self.wrong:
            raise ValueError("no more")
        self.drawn += 1
        return {"number": np.array([self.drawn - 1])}


def numbers(batches):
    return [batch["number"].item() for batch in batches]


@pytest.mark.parametrize("ahead, count", [(0, 5), (1, 5), (2, 1), (2, 2), (2, 16), (5, 3), (2, 0)])
def test_as_many_are_drawn_as_are_asked_for_in_their_order(ahead, count):
    prefetch, draw = Prefetch(ahead, CPU), Counted()
    for _ in range(2):
        assert numbers(prefetch.batches(draw, count)) == [*range(draw.drawn - count, draw.drawn)]
    assert draw.drawn == 2 * count
    here = threading.get_ident()
    assert draw.threads == (
        set() if not count else {here} if not ahead or count == 1 else draw.threads - {here}
    )
    assert len(draw.threads) <= 1


def test_while_one_is_learned_from_the_next_are_drawn_and_no_more():
    prefetch, draw = Prefetch(2, CPU), Counted()
    for learned, _ in enumerate(prefetch.batches(draw, 6), 1):
        until = time.monotonic() + 10.0
        while draw.drawn < min(learned + 2, 6) and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.02)
        assert draw.drawn == min(learned + 2, 6)


def test_batches_are_drawn_in_one_thread_that_bears_a_name():
    prefetch = Prefetch(3)
    names = list(prefetch.batches(lambda: threading.current_thread().name, 8))
    assert names == ["prefetch_0"] * 8


def test_a_draw_that_fails_is_heard_and_an_update_that_fails_stops_drawing():
    with pytest.raises(ValueError, match="no more"):
        numbers(Prefetch(2, CPU).batches(Counted(wrong=3), 6))
    prefetch, draw = Prefetch(2, CPU), Counted()
    batches = prefetch.batches(draw, 100)
    next(batches)
    batches.close()
    assert draw.drawn <= 1 + 2 and numbers(prefetch.batches(Counted(), 3)) == [0, 1, 2]


@pytest.mark.parametrize(
    "mode, placement, ahead, copies",
    [
        ("auto", "{}", 0, True),
        ("always", "{}", PREFETCHED_BATCHES, True),
        ("never", "{}", 0, True),
        ("auto", "{learners: 2}", 0, False),
        ("always", "{learners: 2}", PREFETCHED_BATCHES, False),
        ("never", "{learners: 2, learner_gpus: 1}", 0, False),
        ("auto", "{learners: 2, learner_gpus: 1}", PREFETCHED_BATCHES, False),
    ],
)
def test_where_it_cannot_help_it_is_off(mode, placement, ahead, copies):
    prefetch = make_prefetch(
        recipe_of("sac", f"learner.prefetch={mode}", f"placement={placement}"), CPU
    )
    assert (prefetch.depth, prefetch.device, prefetch.stream) == (
        ahead,
        CPU if copies else None,
        None,
    )
    assert (prefetch.thread is not None) == (ahead > 0)


RLPD = (
    "algorithm={name: rlpd, batch_size: 16, critic_hidden: [16], critics: 2, critic_warmup: 0}",
    "policy.hidden=[16]",
    "collect.episodes=3",
    "sft.steps=40",
    "sft.batch_size=16",
    "simulation.env_steps=120",
    "simulation.start_steps=20",
    "simulation.evaluate_every=60",
    "simulation.evaluate_episodes=4",
    "simulation.updates_per_step=4",
    "simulation.environments=4",
)
IQL = (
    "algorithm={name: iql, steps: 60, batch_size: 16, critic_hidden: [16]}",
    "policy.hidden=[16]",
    "collect.episodes=3",
    "simulation.evaluate_every=35",
    "simulation.evaluate_episodes=4",
)
PPO = (
    "algorithm.chunks=8",
    "simulation.env_steps=64",
    "simulation.environments=4",
    "simulation.evaluate_every=32",
    "simulation.evaluate_episodes=4",
    "policy.hidden=[16]",
)


@pytest.mark.parametrize(
    "name, overrides",
    [
        pytest.param("sac", RLPD, id="rlpd", marks=pytest.mark.slow),
        pytest.param("sac", IQL, id="iql"),
        pytest.param("ppo", PPO, id="ppo"),
    ],
)
def test_the_same_seed_gives_the_same_updates_with_it_and_without(name, overrides, tmp_path):
    weights, entries = [], []
    for how in ("never", "always"):
        train(recipe_of(name, *overrides, f"learner.prefetch={how}"), tmp_path / how, points)
        policy = load_policy(max((tmp_path / how / "policies").iterdir()), SPEC)
        weights.append(
            torch.cat([value.flatten().float() for value in policy.state_dict().values()])
        )
        entries.append(
            [
                {
                    key: value
                    for key, value in entry.items()
                    if "second" not in key and key != "time"
                }
                for entry in read_evaluations(tmp_path / how)
            ]
        )
    assert torch.equal(*weights) and entries[0] == entries[1] and entries[0][-1]["updates"] > 0


def test_a_run_goes_on_from_a_checkpoint_of_one_that_drew_ahead_as_if_it_had_not(task, tmp_path):
    """Also what was counted: a transition that was drawn has been learned from."""
    ends = []
    for how, ahead in (("never", 0), ("always", PREFETCHED_BATCHES)):
        override, folder = f"learner.prefetch={how}", tmp_path / how
        one = begun(task, folder, Spool(folder / "spool"), override)
        one._learn(6)
        one.save()
        torch.manual_seed(123)
        two = run_of(task, folder, override)
        assert (one.prefetch.depth, two.prefetch.depth, two.updates) == (ahead, ahead, 6)
        for run in (one, two):
            run._learn(5)
            weights = torch.cat([p.detach().flatten() for p in run.policy.parameters()]).tolist()
            ends.append((run.data.random.bit_generator.state, run.counts(), weights))
    assert ends[1:] == ends[:1] * 3 and ends[0][1]["a/sampled"] == (4 + 11) * 16


def test_nothing_is_drawn_before_what_the_governor_asks_for_is_in(task, tmp_path):
    """Whenever something is inserted, all that was drawn has been learned from."""
    spool = Spool(tmp_path / "spool")
    run = begun(task, tmp_path / "run", spool)
    run.prefetch = Prefetch(PREFETCHED_BATCHES, CPU)
    happened, batch, update = [], run.data.batch, run.learner.update
    run.data.batch = lambda: happened.append("draw") or batch()
    run.learner.update = lambda batch: happened.append("learn") or update(batch)
    for number in range(4):
        while due := run.updates_due():
            run._learn(due)
        assert happened.count("draw") == happened.count("learn") == run.updates == 18 + 10 * number
        observations = {"vectors": np.zeros((6, run.policy.spec.vector_size), np.float32)}
        run.insert(
            Trajectory(
                observations,
                np.zeros((5, 3)),
                np.zeros(5),
                np.ones(5),
                False,
                version=1,
                station="b",
            )
        )
    shown(run, spool, "o2", steps=5)
    assert run.updates_due() > 0 and happened.count("draw") == run.updates


def test_on_cuda_an_update_waits_for_the_copy_of_its_batch_and_keeps_its_memory(monkeypatch):
    """A stand-in for CUDA says in which stream each step comes, and in which order."""
    happened, current = [], ["learning"]

    class Stream:
        def __init__(self, name):
            self.name = name

        def record_event(self):
            happened.append((self.name, "event"))
            return "copied"

        def wait_event(self, event):
            happened.append((self.name, f"waits until {event}"))

    class Values:
        def __init__(self, place):
            self.place = place

        def pin_memory(self):
            return Values("pinned")

        def to(self, device, non_blocking):
            happened.append((current[-1], f"copy of {self.place}", device.type, non_blocking))
            return Values("gpu")

        def record_stream(self, stream):
            happened.append((stream.name, "keeps"))

    @contextlib.contextmanager
    def in_stream(stream):
        current.append(stream.name)
        yield
        current.pop()

    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "Stream", lambda of: Stream(f"copies to {of.type}"))
    monkeypatch.setattr(torch.cuda, "stream", in_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: Stream(f"updates on {of.type}"))
    monkeypatch.setattr(
        prefetching, "to_tensors", lambda batch: dict.fromkeys(batch, Values("cpu"))
    )
    (first, _) = Prefetch(1, device).batches(lambda: {"a": 0, "b": 1}, 2)
    assert [(name, values.place) for name, values in first.items()] == [("a", "gpu"), ("b", "gpu")]
    copies = [one for one in happened if one[0] == "copies to cuda"]
    uses = [one for one in happened if one[0] == "updates on cuda"]
    copy = ("copies to cuda", "copy of pinned", "cuda", True)
    assert copies == [copy, copy, ("copies to cuda", "event")] * 2
    updates = ["waits until copied", "keeps", "keeps"] * 2
    assert uses == [("updates on cuda", update) for update in updates]
    assert len(happened) == len(copies) + len(uses), "no copy is in another stream"
    assert Prefetch(0, device).stream is None and Prefetch(1, CPU).stream is None
    assert Prefetch(1).stream is None


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no CUDA device: pinned memory and the second stream are not run",
)
def test_on_a_gpu_batches_are_copied_from_pinned_memory_beside_the_updates():
    random, device = np.random.default_rng(0), torch.device("cuda")
    drawn = [pictures(random, 64) for _ in range(40)]
    waiting = iter(drawn)
    for expected, batch in zip(
        drawn,
        Prefetch(PREFETCHED_BATCHES, device).batches(lambda: next(waiting), len(drawn)),
        strict=True,
    ):
        busy = torch.randn(2000, 2000, device=device)
        for _ in range(5):
            busy = busy @ busy / 100.0
        for name, values in expected.items():
            assert batch[name].is_cuda and np.array_equal(batch[name].cpu().numpy(), values), name
