"""``rlinf compare`` and ``rlinf why``: learning curves of runs, and faults that stop learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinf_core.cli.output import write_json
from rlinf_core.reports.curves import curve_of, draw, measure_of
from rlinf_core.reports.seeds import Run, group_by_seed, read_run, write_csv


def compare(runs: list[Path], out: Path, csv_file: Path | None = None) -> None:
    """Draw the success of runs over time steps, and print when each first reached 50 and 90 %.

    Runs that differ only by their seed share one curve, their mean. Where no run has a success, the
    picture shows returns. An earlier picture is replaced.
    """
    named = dict(zip(distinct_names(runs), runs, strict=True))
    curves = group_by_seed([read_run(name, run) for name, run in named.items()])
    measure = measure_of(run.evaluations for members in curves.values() for run in members)
    for curve, members in curves.items():
        for run in members:
            print(_summary(run, measure))
        if len(members) > 1:
            print(_mean(curve, members, measure))
    draw(
        {curve: [run.evaluations for run in members] for curve, members in curves.items()},
        out,
        measure,
    )
    print(f"picture: {out}")
    if csv_file is not None:
        write_csv(curves, csv_file)
        print(f"table: {csv_file}")


def why(run_dir: Path, json_file: Path | None) -> int:
    """Print each fault that the checks find, with evidence and remedy; return 1 if there is one."""
    from rlinf_core.trainer.diagnosis import CHECKS, diagnose, read_evidence

    evidence = read_evidence(run_dir)
    findings = diagnose(evidence)
    print(
        f"{run_dir}: {len(evidence.evaluations)} evaluations, the last with "
        f"{evidence.success:.0%} success; {len(evidence.online)} episodes of its own and "
        f"{len(evidence.demonstrations)} demonstrations in the replay"
    )
    for finding in findings:
        print(f"\n{finding.name}: {finding.evidence}\n  remedy: {finding.remedy}")
    if not findings:
        print(
            f"none of {len(CHECKS)} checks found a fault. Look at an episode: rlinf show, rlinf "
            f"eval --video"
        )
    write_json(json_file, {finding.name: finding.evidence for finding in findings})
    return int(bool(findings))


def _summary(run: Run, measure: str) -> str:
    last = run.evaluations[-1]
    words = f"last {_shown(last[measure], measure)} at {last['env_steps']:,.0f} steps"
    if measure == "success":
        firsts = ", ".join(_first(run.evaluations, success) for success in (0.5, 0.9))
        words = f"{firsts}; {words}"
    return f"{run.name:<24}  {words}"


def _mean(curve: str, members: list[Run], measure: str) -> str:
    seeds = ", ".join(str(run.settings.get("seed")) for run in members)
    points = curve_of([run.evaluations for run in members], measure)
    if not points:
        return f"{curve}: no mean of seeds {seeds}, whose runs have no time steps in common"
    value, low, high = (_shown(number, measure) for number in points[-1][1:])
    low, high = (bound.removeprefix("return ") for bound in (low, high))
    return (
        f"{curve}: mean of seeds {seeds}: {value} at {points[-1].env_steps:,.0f} steps, "
        f"95 % interval {low} to {high}"
    )


def _shown(value: float, measure: str) -> str:
    return f"{value:.0%}" if measure == "success" else f"return {value:.2f}"


def _first(entries: list[dict[str, Any]], success: float) -> str:
    """Return when a run first reached a success rate: time steps, robot time, trainer time."""
    first = next((entry for entry in entries if entry["success"] >= success), None)
    if first is None:
        return f"never {success:.0%}"
    robot = f", {first['robot_minutes']:.1f} robot-minutes" if "robot_minutes" in first else ""
    return f"{success:.0%} after {first['env_steps']:,.0f} steps{robot}, {first['seconds']:.0f} s"


def distinct_names(runs: list[Path]) -> list[str]:
    """Return distinct names of folders, with as many parents as needed: sac/run, ppo/run."""
    parts = [run.resolve().parts for run in runs]
    names = (
        [str(Path(*path_parts[-depth:])) for path_parts in parts]
        for depth in range(1, max(map(len, parts)) + 1)
    )
    return next(candidates for candidates in names if len(set(candidates)) == len(set(parts)))
