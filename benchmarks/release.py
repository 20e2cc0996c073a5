"""How often a staged roll-out decides rightly, and after how many episodes: trials of policies whose rates are known.

    python benchmarks/release.py --trials 400 --episodes 50 100 --json benchmarks/results/release.json

Each trial is one of the trainer's own (``Releases``, default settings), of episodes that are drawn: each succeeds with its
policy's rate, and the interlock is in the way for a time around its policy's mean. Nothing is learned, sent or written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from rlinf_core.bridge import bridge_pb2 as pb  # noqa: E402
from rlinf_core.recipes.release import Release  # noqa: E402
from rlinf_core.trainer.release.record import Outcome, Record  # noqa: E402
from rlinf_core.trainer.release.releases import Releases  # noqa: E402

POLICIES = [(0.9, 0.9, 0.2), (0.5, 0.5, 0.2), (0.9, 0.95, 0.2), (0.9, 0.8, 0.2), (0.9, 0.7, 0.2), (0.9, 0.5, 0.2),
            (0.5, 0.2, 0.2), (0.9, 0.9, 0.3)]  # success of the old and of the new one, time of the interlock with the new
OLD_TIME, SPREAD = 0.2, 0.1


def trial(random: np.random.Generator, episodes: int, old: float, new: float, held: float) -> tuple[bool, int]:
    """Whether it was rolled back, and after how many episodes."""
    releases = Releases(Release(staged=True, episodes=episodes), Path("/nowhere"))
    heard = {"a": (time.time(), pb.StationReport())}
    releases.version_for("a", 1)
    played = 0
    while releases.version_for("a", 2) == 2 or not played:
        version = releases.version_for("a", 2)
        rate, mean = (old, OLD_TIME) if version == 1 else (new, held)
        outcome = Outcome(id=f"{version}-{played}", version=version, success=bool(random.random() < rate),
                          interlock=float(np.clip(random.normal(mean, SPREAD), 0.0, 1.0)))
        releases.played("a", outcome)
        played += version == 2
        releases.look(2, heard)
        if releases.record.current == 2:
            return False, played
    return True, played


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="of each pair of policies")
    parser.add_argument("--episodes", type=int, nargs="+", default=[Release().episodes], help="release.episodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    Record.write = lambda record, path: None  # type: ignore[method-assign]
    random, flat = np.random.default_rng(options.seed), {"trials": options.trials}
    print(f"{'at most':>7}{'success, old':>14}{'new':>6}{'interlock':>11}{'new':>6}{'rolled back':>13}{'episodes':>10}")
    for most in options.episodes:
        for old, new, held in POLICIES:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                ends = [trial(random, most, old, new, held) for _ in range(options.trials)]
            back, after = (float(np.mean(column)) for column in zip(*ends, strict=True))
            print(f"{most:>7}{old:>14.0%}{new:>6.0%}{OLD_TIME:>11.0%}{held:>6.0%}{back:>13.1%}{after:>10.1f}", flush=True)
            name = f"{most}_{old:.2f}_{new:.2f}_{held:.1f}"
            flat |= {f"rolled_back_{name}": back, f"episodes_{name}": after}
    if options.json:
        options.json.write_text(json.dumps(flat, indent=2) + "\n")


if __name__ == "__main__":
    main()
