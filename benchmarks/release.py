"""Measure how often a staged roll-out decides rightly, and after how many episodes.

The success rates of the policies are known.

    python benchmarks/release.py --trials 400 --episodes 50 100 --json
    benchmarks/results/release.json python benchmarks/release.py --trials 400 --episodes --watch 400

Each trial is one of the trainer's own (``ReleaseController``, default settings), of episodes that
are drawn: each succeeds with its policy's rate, and the interlock intervenes for a time around its
policy's mean. It does not cover robots: nothing is learned, sent or written.
--watch is what comes of a policy after it went to all: worse at once, or from its 101st episode on.
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

# success of the old and of the new one, time of the interlock with the new
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


def drawn(
    random: np.random.Generator, name: str, version: int, rate: float, mean: float
) -> Outcome:
    return Outcome(
        id=name,
        version=version,
        success=bool(random.random() < rate),
        interlock=float(np.clip(random.normal(mean, SPREAD), 0.0, 1.0)),
    )


def watch(
    random: np.random.Generator, episodes: int, old: float, new: float, held: float, since: int
) -> tuple[bool, int]:
    """Whether the version of all was rolled back, and after how many episodes since it was that
    worse.
    """
    releases = ReleaseController(Release(staged=True, watch=episodes), Path("/nowhere"))
    releases.version_for("a", 1)
    for number in range(episodes):
        releases.played("a", drawn(random, f"1-{number}", 1, old, OLD_TIME))
    releases.promote(2, "")
    for number in range(episodes):
        rate, mean = (new, held) if number >= since else (old, OLD_TIME)
        releases.played("a", drawn(random, f"2-{number}", 2, rate, mean))
        if releases.record.current == 1:
            return True, number + 1 - since
    return False, episodes - since


def trial(
    random: np.random.Generator, episodes: int, old: float, new: float, held: float
) -> tuple[bool, int]:
    """Whether it was rolled back, and after how many episodes."""
    releases = ReleaseController(Release(staged=True, episodes=episodes), Path("/nowhere"))
    reports = {"a": (time.monotonic(), pb.StationReport())}
    releases.version_for("a", 1)
    played = 0
    while releases.version_for("a", 2) == 2 or not played:
        version = releases.version_for("a", 2)
        rate, mean = (old, OLD_TIME) if version == 1 else (new, held)
        releases.played("a", drawn(random, f"{version}-{played}", version, rate, mean))
        played += version == 2
        releases.look(2, reports)
        if releases.record.current == 2:
            return False, played
    return True, played


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=2000, help="of each pair of policies")
    parser.add_argument(
        "--episodes", type=int, nargs="*", default=[Release().episodes], help="release.episodes"
    )
    parser.add_argument("--watch", type=int, nargs="*", default=[], help="release.watch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    Record.write = lambda record, path: None  # type: ignore[method-assign]
    random, flat = np.random.default_rng(options.seed), {"trials": options.trials}
    settings: list[tuple[int, int | None]] = [(most, None) for most in options.episodes]
    settings += [(most, since) for most in options.watch for since in (0, LATER)]
    print(
        f"{'at most':>7}{'success, old':>14}{'new':>6}{'interlock':>11}{'new':>6}{'from':>6}{'rolled back':>13} after"
    )
    for most, since in settings:
        for old, new, held in POLICIES:
            play = trial if since is None else partial(watch, since=since)
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                ends = [play(random, most, old, new, held) for _ in range(options.trials)]
            back, after = (float(np.mean(column)) for column in zip(*ends, strict=True))
            print(
                f"{most:>7}{old:>14.0%}{new:>6.0%}{OLD_TIME:>11.0%}{held:>6.0%}{since or 0:>6}{back:>13.1%}{after:>6.0f}",
                flush=True,
            )
            name = (
                f"{'' if since is None else f'since_{since}_'}{most}_{old:.2f}_{new:.2f}_{held:.1f}"
            )
            flat |= {f"rolled_back_{name}": back, f"episodes_{name}": after}
    if options.json:
        write(options.json, flat)


if __name__ == "__main__":
    main()
