"""Placement: predictions, choices, changes while a run goes on, weights to workers, and separate
simulators.

    python benchmarks/placement.py --json results.json     # about 35 minutes on two quiet cores
    python benchmarks/placement.py --only weights apart    # some rows

The workloads of ``choice`` are runs of small networks in simulators that sleep
(``SleepingPoints``), and are named so: a busy machine then matters less. Every layout of a workload
is visited in turn within one run, several rounds, and medians of their turns are compared. The
first two layouts give the costs; the other ones are predicted. The choice is that of a run: it
tries the layout that is chosen from what it has measured so far, keeps it if it is faster by 2 %,
and chooses again with the measurements of that layout, until it stays. A second row has the rules
of a run: gains of 5 %, and a kept change is the last one. ``predict`` does the same
with two shipped recipes and their own simulators. Their first figures were seen before the last
terms of the cost model were chosen; no number of the model was fitted to them.
Figures: the worst relative error of a prediction; the worst ratio of the chosen layout's seconds to
those of the best one; the largest difference of a weight after learners changed from 1 to 2 to 1;
the worst ratio over two phases of the best static layout's seconds to those of a run that follows
its load; changes of the layout under a constant load, and its rate over that of the layout by hand
where nothing is to gain; seconds of a change of 1 % of 80 MB of weights over those of all; time
steps a second of eight slow environments in processes of their own, over environments and policy in
one worker and over eight such workers. Clusters are simulated from published costs, and marked so.
The end lists every row with its bar. It does not cover GPUs, several machines, or how well a policy learns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from benchmarks.figures import write  # noqa: E402
from rlinf_core.plan.choose import choose  # noqa: E402
from rlinf_core.plan.cost import Costs, Layout, expected_turn  # noqa: E402
from rlinf_core.plan.device_split import Stage, split_devices, turn_seconds  # noqa: E402
from rlinf_core.plan.layout_controller import (  # noqa: E402
    MIN_GAIN,
    MIN_MEASURED_GAIN,
    MIN_TURN_S,
    LayoutController,
    Turn,
)
from rlinf_core.plan.measurements import Key, Sample  # noqa: E402
from rlinf_core.recipes import load_recipe  # noqa: E402
from rlinf_core.reports.curves import read_events  # noqa: E402
from rlinf_core.rollouts.envs import VectorEnv  # noqa: E402
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec  # noqa: E402
from rlinf_core.trainer import train as training  # noqa: E402
from sim_bridges.core.environments import make_environments  # noqa: E402
from tests.algorithms.point import Points  # noqa: E402

SLOW_S, FAST_S = 8e-3, 0.5e-3  # of one environment's time step
PICTURES = StationSpec(
    (ArraySpec("pose", (3,)), ArraySpec("front", (32, 32, 3), "uint8")),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.1, 0.1), ("m", "m")),
    10.0,
    "push",
)
SMALL_PPO = ["algorithm.name=async_ppo", "algorithm.epochs=2", "algorithm.chunks=10"]
NETWORKS = {
    "mlp": (
        "sim_sac",
        ["policy.hidden=[32, 32]", "algorithm.critic_hidden=[32, 32]", "algorithm.batch_size=64"],
    ),
    "cnn": ("sim_ppo", ["policy.hidden=[32, 32]", *SMALL_PPO]),
    "flow": (
        "sim_sac_flow",
        ["policy.hidden=[32, 32]", "algorithm.critic_hidden=[32, 32]", "algorithm.batch_size=64"],
    ),
    "vla": (
        "sim_ppo",
        ["policy={{kind: smolvla, horizon: 2, sde_noise: 0.3, checkpoint: {}}}", *SMALL_PPO],
    ),
    "language": ("sim_ppo", ["policy={{kind: qwen_vl, horizon: 1, checkpoint: {}}}", *SMALL_PPO]),
}
WITH_PICTURES = {"cnn": "", "vla": "smolvla", "language": "qwen_vl"}  # and their tiny checkpoint
LAYOUTS = [  # all of four environments on two cores; in this order few processes start anew
    Layout(workers, learners, pipelined)
    for learners in (0, 2)
    for workers, pipelined in (
        (1, False),
        (2, False),
        (2, True),
        (4, True),
        (4, False),
        (1, True),
        (0, False),
    )
]
VLA_SIZES: dict[str, dict[str, Any]] = {  # 1 and 34 million weights
    "tiny": {},
    "large": {
        "num_vlm_layers": 8,
        "vlm_config": {
            "text_config": {
                "hidden_size": 512,
                "num_hidden_layers": 8,
                "intermediate_size": 1024,
                "head_dim": 128,
            }
        },
    },
}
UNSEEN = {  # two shipped recipes with their own simulators
    "crossq": (
        "sim_crossq",
        [
            "simulation.environments=4",
            "simulation.start_steps=50",
            "simulation.updates_per_step=0.2",
        ],
    ),
    "reach": (
        "sim_async_ppo",
        ["simulation.environments=8", "algorithm.chunks=32", "placement={auto: true}"],
    ),
}
# s: RLinf, toolkits/auto_placement/profiler.yaml
PUBLISHED = {
    "rollout": 59.9,
    "inference": 30.8,
    "actor": 95.7,
}


ENDING = ExitStack()  # of the benchmark
ENDLESS = [
    "simulation.env_steps=1000000",
    "simulation.evaluate_every=1000000000",
    "simulation.evaluate_episodes=1",
    "checkpoint.every_minutes=60.0",
]


class SleepingPoints(Points):
    """A simulator that sleeps: each of its environments takes ``step_s``."""

    def __init__(self, size: int, step_s: float) -> None:
        super().__init__(size)
        self.step_s = step_s

    def step(self, actions: np.ndarray, active: Any = None) -> Any:
        time.sleep(self.step_s * self.size)
        return super().step(actions, active)


class SleepingPictures(SleepingPoints):
    """The same with a camera, whose picture is black, for a VLA."""

    def __init__(self, size: int, step_s: float) -> None:
        super().__init__(size, step_s)
        self.spec = PICTURES

    def observation(self) -> dict[str, np.ndarray]:
        vectors = np.pad(self.at.astype(np.float32), ((0, 0), (0, 1)))
        return {"vectors": vectors, "front": np.zeros((self.size, 32, 32, 3), np.uint8)}


def pictures(recipe: Any, size: int) -> VectorEnv:
    return SleepingPictures(size, 4 * SLOW_S)


class Sleeping:
    """Makes them; picklable for workers."""

    def __init__(self, step_s: float, kind: type[SleepingPoints] = SleepingPoints) -> None:
        self.step_s, self.kind = step_s, kind

    def __call__(self, recipe: Any, size: int) -> VectorEnv:
        return self.kind(size, self.step_s)


class Turning(Sleeping):
    """Steps take ``before`` until the file ``flag`` is there, and ``step_s`` then."""

    def __init__(self, before: float, step_s: float, flag: Path) -> None:
        super().__init__(step_s)
        self.before, self.flag = before, flag

    def __call__(self, recipe: Any, size: int) -> VectorEnv:
        outer = self

        class Env(SleepingPoints):
            def step(self, actions: np.ndarray, active: Any = None) -> Any:
                self.step_s = outer.step_s if outer.flag.exists() else outer.before
                return super().step(actions, active)

        return Env(size, self.before)


@cache
def tiny_checkpoint(kind: str) -> Path:
    """A tiny checkpoint of a family, with random weights, until the benchmark ends."""
    from rlinf_core.policies.pretrained import tiny_checkpoint

    folder = ENDING.enter_context(TemporaryDirectory())
    return Path(
        tiny_checkpoint.write(kind, Path(folder) / "tiny", horizon=2 if kind == "smolvla" else 0)
    )


def recipe_of(network: str, *more: str) -> Any:
    if network in UNSEEN:
        name, keys = UNSEEN[network]
        return load_recipe(name, [*ENDLESS, "placement={auto: true}", *keys, *more])
    name, keys = NETWORKS[network]
    if kind := WITH_PICTURES.get(network):
        keys = [key.format(tiny_checkpoint(kind)) if "{}" in key else key for key in keys]
    short = [
        "simulation.environments=4",
        "simulation.start_steps=50",
        "simulation.updates_per_step=0.2",
        "placement={auto: true}",
    ]
    return load_recipe(name, [*ENDLESS, *short, *keys, *more])


class Tour(LayoutController):
    """Visits layouts one after another, several rounds, and notes the seconds a time step of each
    turn.
    """

    layouts: list[Layout]
    rounds, visit = 2, 4  # turns of a visit

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.route = [layout for _ in range(self.rounds) for layout in self.layouts]
        self.seconds: dict[Layout, list[float]] = defaultdict(list)
        self.change_s: list[float] = []
        self.turn_count, self.two_sizes, self.done = 0, None, False
        self.of_layout: dict[Layout, dict[Key, list[Sample]]] = {}  # samples of its first visit
        self.skip = 10  # turns: the first updates are slow, and rollouts begin at random
        Tour.newest = self

    def first_layout(self) -> Layout:
        self.layout = self.route.pop(0)
        return self.layout

    def record_change(self, layout: Layout, seconds: float) -> None:
        super().record_change(layout, seconds)
        self.change_s.append(seconds)

    def record_turn(self, turn: Turn, steps_left: float) -> Layout | None:
        if turn.steps <= 0 or self.done:
            return None
        if self.skip:
            self.skip -= 1
            return None
        if not self.layout.workers:  # its turns are short
            self.pending_turn = turn = self.pending_turn.merge(turn)
            if turn.seconds < MIN_TURN_S:
                return None
        self.pending_turn = Turn(count=0)
        self._measure(turn)
        self.seconds[self.layout].append(turn.seconds / turn.steps)
        self.turn_count += 1
        if self.turn_count < self.visit:
            return None
        self.turn_count = 0
        self.of_layout.setdefault(
            self.layout, {key: list(row) for key, row in self.measurements.samples.items()}
        )
        self.measurements.samples = {}
        if self.two_sizes is None and len(self.seconds) == 2:
            self.two_sizes = self.costs_of(self.of_layout)  # the others are predicted from these
        if not self.route:
            self.done = True
            return None
        return self.route.pop(0)

    def costs_of(self, layouts: Iterable[Layout]) -> Costs:
        """Return the costs that a run knows which has been in these layouts."""
        samples: dict[Key, deque[Sample]] = defaultdict(deque)
        for layout in layouts:
            for key, row in self.of_layout[layout].items():
                samples[key].extend(row)
        self.measurements.samples = dict(samples)
        costs = self.measurements.costs()
        self.measurements.samples = {}
        return costs


def choice(
    visited: Tour,
    rates: dict[Layout, float],
    min_gain: float = 0.0,
    single_change: bool = False,
) -> tuple[Layout, int]:
    """Return where a run ends that chooses, tries and keeps or takes back; and its trials.

    Args:
        visited: every layout.
        rates: seconds of a time step in each.
        min_gain: relative gain that a trial must promise.
        single_change: whether a layout that is kept is the last one, as in a run.
    """
    layouts = list(rates)[:2]
    layout = min(layouts, key=lambda one: rates[one])
    refused: set[Layout] = set()
    trials = 0
    while True:
        costs = visited.costs_of(layouts)
        chosen = choose(visited.recipe, costs, visited.machine, tuple(refused)).layout
        if chosen not in rates:  # one that was not visited: the nearest that was
            chosen = min(
                set(rates) - refused,
                key=lambda one: expected_turn(costs, one, visited.machine).seconds,
            )
        expected = [expected_turn(costs, one, visited.machine).seconds for one in (chosen, layout)]
        if chosen == layout or expected[0] > (1 - min_gain) * expected[1]:
            return layout, trials
        if chosen not in layouts:
            layouts.append(chosen)
            trials += 1
        if rates[chosen] < rates[layout] * (1 - MIN_MEASURED_GAIN):
            layout = chosen
            if single_change:
                return layout, trials
        else:
            refused.add(chosen)


def tour(network: str, step_s: float, layouts: list[Layout], rounds: int, visit: int = 4) -> Tour:
    """Visit layouts in one run; ``step_s`` 0 takes the recipe's own simulator."""
    Tour.layouts, Tour.rounds, Tour.visit = layouts, rounds, visit
    kind = SleepingPictures if network in WITH_PICTURES else SleepingPoints
    make = Sleeping(step_s, kind) if step_s else make_environments
    before, training.LayoutController = training.LayoutController, Tour
    try:
        with TemporaryDirectory() as folder:
            training.train(
                recipe_of(network),
                Path(folder),
                make,
                on_progress=lambda run, entry: setattr(
                    run, "stopping", run.stopping or Tour.newest.done
                ),
            )
    finally:
        training.LayoutController = before
    return Tour.newest


def visit_noise(visited: Tour) -> float:
    """Return the median relative difference of two visits of a layout; 0 after one round."""
    differences = []
    for turns in visited.seconds.values():
        visits = [
            median(turns[begin : begin + visited.visit])
            for begin in range(0, len(turns), visited.visit)
        ]
        differences += [
            abs(after / before - 1) for before, after in zip(visits[:-1], visits[1:], strict=True)
        ]
    return median(differences or [0.0])


def judged(name: str, visited: Tour) -> dict[str, float]:
    """Predictions and the choice of a workload, against visits of every layout."""
    rates = {layout: median(values) for layout, values in visited.seconds.items()}
    costs, machine = visited.two_sizes, visited.machine
    origin = visited.layouts[0]
    scale = (
        rates[origin] / expected_turn(costs, origin, machine).seconds
    )  # one layout sets the unit
    predicted = {layout: scale * expected_turn(costs, layout, machine).seconds for layout in rates}
    errors = {layout: abs(predicted[layout] / rate - 1) for layout, rate in rates.items()}
    chosen, trials = choice(visited, rates)
    ratio = rates[chosen] / min(rates.values())
    end, _ = choice(visited, rates, MIN_GAIN, single_change=True)
    run_ratio = rates[end] / min(rates.values())
    noise = visit_noise(visited)
    worst = max(errors.values())
    print(
        f"{name}: error {worst:.2f}, chosen {chosen} after {trials} trials, ratio {ratio:.3f}; "
        f"with a run's rules {run_ratio:.3f}; two visits differ by {noise:.3f}",
        flush=True,
    )
    for layout, rate in sorted(rates.items(), key=lambda pair: pair[1]):
        print(
            f"    {1e3 * rate:7.3f} ms a step, expected {1e3 * predicted[layout]:7.3f}  {layout}",
            flush=True,
        )
    return {
        f"{name}_prediction_error": worst,
        f"{name}_choice_ratio": ratio,
        f"{name}_run_choice_over_best": run_ratio,
        f"{name}_visit_noise": noise,
        f"{name}_trials": trials,
        f"{name}_change_s": median(visited.change_s),
    }


def worst(figures: dict[str, float], ending: str) -> float:
    return max(value for name, value in figures.items() if name.endswith(ending))


def choices(workloads: list[tuple[str, float]], rounds: int) -> dict[str, float]:
    """The chosen layout of each workload over the best of an exhaustive search."""
    figures: dict[str, float] = {}
    for network, step_s in workloads:
        name = f"{network}_{'slow' if step_s == SLOW_S else 'fast'}"
        figures |= judged(name, tour(network, step_s, LAYOUTS, rounds))
    return {
        "worst_choice_ratio": worst(figures, "_choice_ratio"),
        "worst_workload_prediction_error": worst(figures, "_prediction_error"),
        **figures,
    }


def predictions(rounds: int) -> dict[str, float]:
    """Two shipped recipes with their own simulators."""
    figures: dict[str, float] = {}
    for name in UNSEEN:
        figures |= judged(name, tour(name, 0.0, LAYOUTS[:7], rounds, visit=8))
    return {"worst_prediction_error": worst(figures, "_prediction_error"), **figures}


def rate_of(seconds: float, placement: str) -> tuple[float, int]:
    """Time steps a second of a run in the second half of its time, and the changes of layout."""
    steps: list[tuple[float, int]] = []

    def on_progress(run: Any, entry: Any) -> None:
        if run.updates:
            steps.append((time.monotonic(), run.data.steps))
            run.stopping = run.stopping or steps[-1][0] > steps[0][0] + seconds

    with TemporaryDirectory() as folder:
        recipe = recipe_of("mlp", f"placement={placement}")
        training.train(recipe, Path(folder), Sleeping(FAST_S / 10), on_progress)
        changes = sum(event.get("decision") == "change" for event in read_events(Path(folder)))
    late = [row for row in steps if row[0] > steps[0][0] + seconds / 2]
    return (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0]), changes


def constant(seconds: float, rounds: int) -> dict[str, float]:
    """A quick simulator and a small network: the layout by hand is one process."""
    by_hand, chosen, changes = [], [], []
    for _ in range(rounds):
        by_hand.append(
            rate_of(seconds, "{auto: true, fixed: [workers, learners, mode], workers: 0}")[0]
        )
        rate, count = rate_of(seconds, "{auto: true}")
        chosen.append(rate)
        changes.append(count)
    return {
        "constant_load_changes": max(changes),
        "constant_load_ratio": median(chosen) / median(by_hand),
    }


def resized() -> dict[str, float]:
    """Learners from one to two to one, against an undisturbed one."""
    from rlinf_core.trainer.distributed.group import LearnerGroup
    from tests.trainer.distributed.test_group import alone, batch_of, config_of, policy_of

    random, learner = np.random.default_rng(3), alone("rlpd")
    group = LearnerGroup(
        "rlpd", policy_of("rlpd"), config_of("rlpd"), 3, size=1, strategy="ddp", cpus=0.25
    )
    seconds = []
    for size in (1, 2, 1):
        started = time.perf_counter()
        group.resize(size)
        seconds.append(time.perf_counter() - started)
        for _ in range(4):
            batch = batch_of("rlpd", random)
            learner.update(batch)
            group.update(batch)
    error = max(
        float((value - group.state_dict()["modules"][name][key]).abs().max())
        for name, module in learner.modules.items()
        for key, value in module.state_dict().items()
    )
    group.close()
    return {
        "resize_weight_error": error,
        "learners_1_to_2_s": seconds[1],
        "learners_2_to_1_s": seconds[2],
    }


def turning(seconds: float, rounds: int) -> dict[str, float]:
    """A load that turns at half-time: a run that follows it, against every static layout."""
    layouts = [
        Layout(1),
        Layout(4),
        Layout(4, pipelined=True),
        Layout(1, pipelined=True),
        Layout(0),
    ]
    phases = {step_s: tour("mlp", step_s, layouts, rounds).seconds for step_s in (FAST_S, SLOW_S)}
    best = {
        step_s: min(median(values) for values in rates.values()) for step_s, rates in phases.items()
    }
    steps: list[tuple[float, float]] = []
    with TemporaryDirectory() as folder:
        flag = Path(folder) / "slow"

        def on_progress(run: Any, entry: Any) -> None:
            if run.updates:
                steps.append((time.time(), run.data.steps))
                if steps[-1][0] > steps[0][0] + seconds:
                    flag.touch()
            run.stopping = run.stopping or bool(steps) and steps[-1][0] > steps[0][0] + 2 * seconds

        training.train(recipe_of("mlp"), Path(folder), Turning(FAST_S, SLOW_S, flag), on_progress)
        print((Path(folder) / "progress.jsonl").read_text())
    ratios = []
    for step_s, skip in ((FAST_S, 0.0), (SLOW_S, seconds)):
        begin = steps[0][0] + skip
        inside = [row for row in steps if begin <= row[0] <= begin + seconds]
        rate = (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
        ratios.append(best[step_s] * rate)
    # seconds of a time step of each phase
    static = min(
        median(phases[FAST_S][layout]) + median(phases[SLOW_S][layout]) for layout in layouts
    )
    followed = sum(best[step_s] / ratio for step_s, ratio in zip(phases, ratios, strict=True))
    return {
        "turning_over_static": static / followed,
        "turning_load_ratio": min(ratios),
        "turning_first_phase": ratios[0],
        "turning_second_phase": ratios[1],
    }


def weights(rounds: int) -> dict[str, float]:
    """80 MB of which 1 % changed: everything through the object store, against what changed."""
    from rlinf_core.trainer.distributed.ray_cluster import connect
    from rlinf_core.trainer.distributed.weights import WeightSender, put, receive

    ray = connect(num_cpus=18)

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(*[torch.nn.Linear(1000, 1000) for _ in range(20)])

    class Receiver:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.module = network()

        def all_of(self, arrays: dict[str, np.ndarray]) -> None:
            self.module.load_state_dict(
                {name: torch.tensor(values) for name, values in arrays.items()}
            )

        def changes(self, update: Any) -> None:
            receive(self.module, update)

    torch.set_num_threads(1)
    module, sender = network(), WeightSender(lambda name: False)
    adapters = WeightSender(lambda name: name != "0.weight")  # the rest is frozen
    adapters.changes(module.state_dict())
    receiver = ray.remote(num_cpus=0.5)(Receiver).remote()
    ray.get(receiver.changes.remote(put(ray, sender.changes(module.state_dict()))))
    spent: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for mode in ("all", "changes", "adapters", "scattered"):
            with torch.no_grad():
                if mode == "scattered":  # over all tensors
                    for parameter in module.parameters():
                        flat = parameter.view(-1)
                        flat[torch.randperm(len(flat))[: max(1, len(flat) // 100)]] += 1.0
                else:  # in one tensor, as of a head or adapters
                    next(module.parameters())[:200] += 1.0
            started = time.perf_counter()
            if mode == "all":
                arrays = {
                    name: value.numpy(force=True) for name, value in module.state_dict().items()
                }
                ray.get(receiver.all_of.remote(ray.put(arrays)))
            else:
                who = adapters if mode == "adapters" else sender
                ray.get(receiver.changes.remote(put(ray, who.changes(module.state_dict()))))
            spent[mode].append(time.perf_counter() - started)
            if mode in ("all", "adapters"):
                sender.changes(module.state_dict())
            if mode != "adapters":
                adapters = WeightSender(lambda name: name != "0.weight")
                adapters.changes(module.state_dict())
    ray.kill(receiver)
    print(
        {mode: [round(value, 4) for value in values] for mode, values in spent.items()}, flush=True
    )
    every, changed, scattered = (median(spent[mode]) for mode in ("all", "changes", "scattered"))
    return {
        "sync_seconds_ratio": changed / every,
        "sync_scattered_ratio": scattered / every,
        "sync_adapters_ratio": median(spent["adapters"]) / every,
        "sync_all_s": every,
        "sync_changes_s": changed,
    }


def separate(rounds: int, steps: int) -> dict[str, float]:
    """Eight slow environments and two sizes of a VLA: simulators in processes of their own, for one
    or two policies, against workers that have a policy and simulators each.
    """
    from rlinf_core.policies.pretrained import tiny_checkpoint
    from rlinf_core.trainer.distributed.ray_cluster import connect

    connect(num_cpus=18)
    figures: dict[str, float] = {}
    for name, network in VLA_SIZES.items():
        with TemporaryDirectory() as folder:
            checkpoint = tiny_checkpoint.write(
                "smolvla", Path(folder) / "vla", network=network, horizon=2
            )
            medians = separate_rates(checkpoint, rounds, steps)
        print(name, medians, flush=True)
        separate_rate = max(value for layout, value in medians.items() if "simulators" in layout)
        best = max(value for layout, value in medians.items() if "simulators" not in layout)
        figures |= {f"apart_{name}_{layout}": value for layout, value in medians.items()}
        figures[f"apart_{name}_speedup"] = separate_rate / best
        for workers in (1, 8):
            figures[f"apart_{name}_over_{workers}_workers"] = (
                medians["simulators_8"] / medians[f"workers_{workers}"]
            )
    figures["apart_ceiling_steps_per_s"] = 8 / (4 * SLOW_S)  # as the simulators sleep
    return figures


def separate_rates(checkpoint: Path, rounds: int, steps: int) -> dict[str, float]:
    """Return the time steps a second of each layout, in turns."""
    from rlinf_core.policies import make_policy, policy_kind
    from rlinf_core.rollouts.collect import EpisodeRollouts
    from rlinf_core.trainer.distributed.remote_envs import RemoteEnvs, make_rollouts
    from rlinf_core.trainer.distributed.rollout_workers import RolloutWorkers

    keys = ["simulation.environments=8", "simulation.start_steps=0"]
    vla = policy_kind("smolvla").Config(checkpoint=str(checkpoint), horizon=2)
    recipe = load_recipe("sim_sac", [*keys, "placement={workers: 1}"])
    recipe = recipe.model_copy(update={"policy": vla})
    policy = make_policy(PICTURES, vla)
    rates: dict[str, list[float]] = defaultdict(list)
    for workers, simulators in ((1, 0), (2, 0), (4, 0), (8, 0), (2, 8), (0, 8)):
        if workers:
            name = f"workers_{workers}" + (f"_simulators_{simulators}" if simulators else "")
            placed = with_workers(recipe, workers, simulators)
            player = RolloutWorkers(placed, pictures, EpisodeRollouts, policy)
            for number in range(rounds + 1):
                started = time.perf_counter()
                player.start(number, {"steps": steps})
                player.take()
                rates[name].append(8 * steps / (time.perf_counter() - started))
            player.close()
            continue
        env = RemoteEnvs.start_envs(recipe, pictures, 8, simulators)
        stages = make_rollouts(EpisodeRollouts, env, policy, 0, 0, 1)
        for _ in range(rounds + 1):
            started = time.perf_counter()
            stages.play_measured({"steps": steps})
            rates[f"simulators_{simulators}"].append(8 * steps / (time.perf_counter() - started))
        env.close()
    # the first one starts environments
    return {name: median(values[1:]) for name, values in rates.items()}


def with_workers(recipe: Any, workers: int, simulators: int) -> Any:
    placement = recipe.placement.but(workers=workers, simulators=simulators)
    return recipe.model_copy(update={"placement": placement})


def clusters() -> dict[str, float]:
    """SIMULATED clusters of 8 to 1,024 GPUs, with RLinf's published costs of ManiSkill and OpenVLA
    on 8.

    The batch grows with the cluster. Seconds of a stage fall as its devices to the power of 0.85,
    which is assumed. 16 micro-batches; devices change hands in 5 s.
    """
    figures = {}
    for devices in (8, 16, 32, 64, 128, 256, 512, 1024):
        stages = [
            Stage(name, tuple(seconds * (devices / n) ** 0.85 for n in range(1, devices + 1)))
            for name, seconds in PUBLISHED.items()
        ]
        started = time.perf_counter()
        plan = split_devices(stages, devices, batches=16, switch_s=5.0)
        took = time.perf_counter() - started
        collocated = sum(stage.seconds[devices - 1] for stage in stages) + 15.0
        third = max(1, devices // 3)
        equal = turn_seconds([stage.seconds[third - 1] for stage in stages], 16)
        figures |= {
            f"simulated_{devices}_over_collocated": collocated / plan.seconds,
            f"simulated_{devices}_over_disaggregated": equal / plan.seconds,
            f"simulated_{devices}_plan_s": took,
        }
        groups = ", ".join(f"{'+'.join(names)} on {count}" for names, count in plan.groups)
        print(
            f"simulated, {devices:5} GPUs: {plan.seconds:6.1f} s a turn ({groups}); collocated "
            f"{collocated / plan.seconds:.2f}, thirds {equal / plan.seconds:.2f}; planned in "
            f"{took:.3f} s",
            flush=True,
        )
    print("published by RLinf on its clusters: 1.07 to 2.43", flush=True)
    return figures


ROWS = (  # figure, bar, whether the bar is a least one
    ("worst_prediction_error", 0.1, False),
    ("worst_choice_ratio", 1.05, False),
    ("resize_weight_error", 1e-5, False),
    ("turning_load_ratio", 0.95, True),
    ("turning_over_static", 1.0, True),
    ("constant_load_changes", 1, False),
    ("constant_load_ratio", 0.98, True),
    ("sync_seconds_ratio", 0.2, False),
    # one policy and eight simulator processes, over environments and policy in one worker, and
    # over eight workers with a policy each
    ("apart_tiny_over_1_workers", 1.5, True),
    ("apart_tiny_over_8_workers", 1.5, True),
    ("simulated_1024_over_collocated", 1.07, True),
    ("simulated_1024_over_disaggregated", 1.07, True),
    ("simulated_128_plan_s", 0.2, False),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = (
        "clusters",
        "weights",
        "resize",
        "apart",
        "constant",
        "turning",
        "predict",
        "choice",
    )
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rounds", type=int, default=2, help="visits of each layout")
    parser.add_argument(
        "--phase", type=float, default=120.0, help="seconds of each half of the load that turns"
    )
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    workloads = [(network, step_s) for network in options.networks for step_s in (FAST_S, SLOW_S)]
    todo = {
        "clusters": clusters,
        "weights": lambda: weights(3 * options.rounds + 1),
        "resize": resized,
        "apart": lambda: separate(options.rounds, 20),
        "constant": lambda: constant(options.phase / 3, options.rounds),
        "turning": lambda: turning(options.phase, options.rounds),
        "predict": lambda: predictions(options.rounds),
        "choice": lambda: choices(workloads, options.rounds),
    }
    figures: dict[str, Any] = {}
    with ENDING:
        for part in options.only:
            started_at = time.monotonic()
            figures |= todo[part]()
            print(f"{part}: {time.monotonic() - started_at:.0f} s", flush=True)
            if options.json:
                write(options.json, figures)
    for name, value in figures.items():
        print(f"{name:40}{value:10.4f}")
    print()
    for name, bar, least in ROWS:
        if name not in figures:
            print(f"{name:40}{'':10}  bar {bar:g}: not measured")
            continue
        met = figures[name] >= bar if least else figures[name] <= bar
        print(f"{name:40}{figures[name]:10.4f}  bar {bar:g}: {'met' if met else 'NOT met'}")
    print("collocated pi0 on a GPU: not measured; it needs one (tests/trainer/test_placed.py)")


if __name__ == "__main__":
    main()
