"""``rlinf duel``: compare two policies on the same simulated scenes by a sequential test."""

from __future__ import annotations

import math
import random
from pathlib import Path

from rlinf_core.cli.evaluate import recipe_of_policy
from rlinf_core.cli.output import write_json
from rlinf_core.core.errors import RlinfError
from rlinf_core.policies.policy_folder import newest_policy
from rlinf_core.policies.serialization import load_policy
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.reports.duel import (
    ALIKE,
    MEASURES,
    OPEN,
    Duel,
    DuelEpisode,
    compare_pair,
    throughput_of,
)
from rlinf_core.reports.films import rollout


def duel(
    a: Path,
    b: Path,
    recipe: str | None,
    overrides: list[str],
    max_pairs: int,
    first_seed: int,
    measures: list[str],
    odds: float,
    json_file: Path | None,
) -> int:
    """Play pairs until the test decides, at most ``max_pairs``.

    Print verdict, intervals and saved episodes.

    The order of the policies is random in each pair, and output before the end does not name them.
    """
    from rich.progress import track

    files = {"A": newest_policy(a), "B": newest_policy(b)}
    if files["A"].read_bytes() == files["B"].read_bytes():
        raise RlinfError(
            f"expected two policies, got one: {files['A']} and {files['B']} are the same to the "
            f"last bit"
        )
    wrong = [name for name in measures if name not in MEASURES]
    if wrong:
        raise RlinfError(f"--by: expected some of {', '.join(MEASURES)}, got {wrong[0]}")
    loaded = load_recipe(recipe or recipe_of_policy(files["A"]), overrides)
    check_recipe(loaded)
    hz = load_policy(files["A"]).spec.control_hz
    seeds = list(range(first_seed, first_seed + max_pairs))
    played = {name: rollout(loaded, file, seeds) for name, file in files.items()}
    sides: dict[str, list[DuelEpisode]] = {name: [] for name in files}
    test = Duel(odds=odds)
    for _ in track(seeds, description="pairs played"):
        for name in random.SystemRandom().sample(sorted(files), 2):
            episode, _ = next(played[name])
            sides[name].append(DuelEpisode(episode.success, episode.steps / hz, episode.value))
        if test.add(compare_pair(sides["A"][-1], sides["B"][-1], measures)) != OPEN:
            break
    _print(test, files, sides, measures)
    write_json(json_file, _flat(test, sides))
    return 0


def _print(
    test: Duel, files: dict[str, Path], sides: dict[str, list[DuelEpisode]], measures: list[str]
) -> None:
    for name, episodes in sides.items():
        totals = throughput_of(episodes)
        time = totals.time_to_success_s
        seconds = ""
        if not math.isnan(time.value):
            seconds = f", {time.value:.1f} s to success ({time.low:.1f} to {time.high:.1f})"
        success, hourly = totals.success, totals.successes_per_hour
        print(
            f"{name} {files[name]}: {success.value:.0%} of {totals.episodes} succeeded "
            f"({success.low:.0%} to {success.high:.0%}), {hourly.value:.0f} successes an hour "
            f"({hourly.low:.0f} to {hourly.high:.0f}){seconds}"
        )
    differ = sum(map(bool, test.pairs))
    share = test.share_a
    print(
        f"by {', '.join(measures)}: {differ} of {len(test.pairs)} pairs differ"
        + (
            f"; A did better in {share.value:.0%} of them ({share.low:.0%} to {share.high:.0%})"
            if differ
            else ""
        )
    )
    verdict = {
        ALIKE: f"no difference of odds {test.odds:g} or more",
        OPEN: "open: not enough pairs to decide. Give more with --pairs",
    }.get(test.verdict, test.verdict)
    print(f"verdict: {verdict} (wrong in at most {test.alpha:.0%} of duels between equal policies)")
    if test.verdict and test.fixed_pairs:
        saved = max(0, test.fixed_pairs - len(test.pairs))
        print(
            f"{len(test.pairs)} pairs played; a test of fixed size needs {test.fixed_pairs}: "
            f"{2 * saved} episodes saved"
        )


def _flat(test: Duel, sides: dict[str, list[DuelEpisode]]) -> dict[str, float | str]:
    flat: dict[str, float | str] = {
        "verdict": test.verdict or "open",
        "pairs": len(test.pairs),
        "differ": sum(map(bool, test.pairs)),
        "fixed_pairs": test.fixed_pairs,
    }
    for name, episodes in sides.items():
        flat |= {
            f"{name.lower()}_{key}": value for key, value in throughput_of(episodes).flat().items()
        }
    return flat
