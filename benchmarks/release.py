"""Measure how often a staged roll-out decides correctly, and after how many episodes.

    python benchmarks/release.py --trials 400 --episodes 50 100 --json
    benchmarks/results/release.json python benchmarks/release.py --trials 400 --episodes --watch 400

Each trial runs the trainer's ``ReleaseController`` with default settings on drawn episodes: each
succeeds with the known rate of its policy, and the interlock intervenes for a time around its
policy's mean. --watch measures a policy after its release to all stations, which is worse at once or
from its 101st episode on. The benchmark does not cover robots: nothing is learned, sent or written.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.figures import write  # noqa: E402
from rlinf_core.deploy.bridge import bridge_pb2 as pb  # noqa: E402
from rlinf_core.deploy.releases import Release  # noqa: E402
from rlinf_core.deploy.releases.record import Outcome, Record  # noqa: E402
from rlinf_core.deploy.releases.releases import ReleaseController  # noqa: E402

# Success of the old and of the new policy, and the interlock's share of time with the new one.
POLICIES = [
    (0.9, 0.9, 0.2),
    (0.5, 0.5, 0.2),
    (0.9, 0.95, 0.2),
    (0.9, 0.8, 0.2),
    (0.9, 0.7, 0.2),
    (0.9, 0.5, 0.2),
    (0.5, 0.2, 0.2),
    (0.9, 0.9, 0.3),
]
OLD_TIME, SPREAD, LATER = 0.2, 0.1, 100


def draw_outcome(
    random: np.random.Generator, name: str, version: int, rate: float, mean: float
) -> Outcome:
    return Outcome(
        id=name,
        version=version,
        success=bool(random.random() < rate),
        interlock=float(np.clip(random.normal(mean, SPREAD), 0.0, 1.0)),
    )


def watch_release(
    random: np.random.Generator,
    episodes: int,
    old: float,
    new: float,
    interlock_share: float,
    worse_from: int,
) -> tuple[bool, int]:
    """Return whether a release is rolled back, and after how many of the worse episodes."""
    releases = ReleaseController(Release(staged=True, watch=episodes), Path("/nowhere"))
    releases.version_for("a", 1)
    for number in range(episodes):
        releases.add_outcome("a", draw_outcome(random, f"1-{number}", 1, old, OLD_TIME))
    releases.promote(2, "")
    for number in range(episodes):
        rate, mean = (new, interlock_share) if number >= worse_from else (old, OLD_TIME)
        releases.add_outcome("a", draw_outcome(random, f"2-{number}", 2, rate, mean))
        if releases.record.current == 1:
            return True, number + 1 - worse_from
    return False, episodes - worse_from


def run_trial(
    random: np.random.Generator, episodes: int, old: float, new: float, interlock_share: float
) -> tuple[bool, int]:
    """Return whether a policy on trial is rolled back, and after how many episodes."""
    releases = ReleaseController(Release(staged=True, episodes=episodes), Path("/nowhere"))
    reports = {"a": (time.monotonic(), pb.StationReport())}
    releases.version_for("a", 1)
    played = 0
    while releases.version_for("a", 2) == 2 or not played:
        version = releases.version_for("a", 2)
        rate, mean = (old, OLD_TIME) if version == 1 else (new, interlock_share)
        releases.add_outcome("a", draw_outcome(random, f"{version}-{played}", version, rate, mean))
        played += version == 2
        releases.update_trials(2, reports)
        if releases.record.current == 2:
            return False, played
    return True, played


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=2000, help="trials of each pair of policies")
    parser.add_argument(
        "--episodes", type=int, nargs="*", default=[Release().episodes], help="release.episodes"
    )
    parser.add_argument("--watch", type=int, nargs="*", default=[], help="release.watch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    Record.write = lambda record, path: None  # type: ignore[method-assign]
    random, flat = np.random.default_rng(options.seed), {"trials": options.trials}
    settings: list[tuple[int, int | None]] = [
        (max_episodes, None) for max_episodes in options.episodes
    ]
    settings += [
        (max_episodes, worse_from) for max_episodes in options.watch for worse_from in (0, LATER)
    ]
    print(
        f"{'at most':>7}{'success, old':>14}{'new':>6}{'interlock':>11}{'new':>6}{'from':>6}{'rolled back':>13} after"
    )
    for max_episodes, worse_from in settings:
        for old, new, interlock_share in POLICIES:
            play = (
                run_trial if worse_from is None else partial(watch_release, worse_from=worse_from)
            )
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                ends = [
                    play(random, max_episodes, old, new, interlock_share)
                    for _ in range(options.trials)
                ]
            rolled_back, after = (float(np.mean(column)) for column in zip(*ends, strict=True))
            print(
                f"{max_episodes:>7}{old:>14.0%}{new:>6.0%}{OLD_TIME:>11.0%}{interlock_share:>6.0%}{worse_from or 0:>6}{rolled_back:>13.1%}{after:>6.0f}",
                flush=True,
            )
            name = f"{'' if worse_from is None else f'since_{worse_from}_'}{max_episodes}_{old:.2f}_{new:.2f}_{interlock_share:.1f}"
            flat |= {f"rolled_back_{name}": rolled_back, f"episodes_{name}": after}
    if options.json:
        write(options.json, flat)


if __name__ == "__main__":
    main()
