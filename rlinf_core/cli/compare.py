"""``rlinf compare``: the curves of several runs in one picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlinf_core.errors import RlinfError


def compare(runs: list[Path], out: Path) -> None:
    """Draw every run's success over time steps, and say when each first reached 90 %."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4))
    for run in runs:
        entries = read_evaluations(run)
        axis.plot([e["env_steps"] for e in entries], [e["success"] for e in entries], marker=".", label=run.name)
        reached = next((e for e in entries if e["success"] >= 0.9), None)
        words = f"90 % after {reached['env_steps']:,.0f} steps, {reached['seconds']:.0f} s" if reached else "never 90 %"
        print(f"{run.name:<24}  {words}; last {entries[-1]['success']:.0%} at {entries[-1]['env_steps']:,.0f} steps")
    axis.set_xlabel("time steps, over all environments")
    axis.set_ylabel("success, held-out scenes")
    axis.set_ylim(-0.03, 1.03)
    axis.legend()
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    print(f"picture: {out}")


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """The evaluations in a run folder; RlinfError if it holds none."""
    path = run / "progress.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    entries = [entry for line in lines if (entry := json.loads(line)).get("event") == "evaluation"]
    if not entries:
        raise RlinfError(f"{run}: expected the folder of a run, with evaluations in progress.jsonl; found none")
    return entries
