"""``rlinf why``: the reasons why a run does not learn."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.cli.output import write_json
from rlinf_core.trainer.diagnosis import CHECKS, diagnose, read_evidence


def why(run_dir: Path, json_file: Path | None) -> int:
    """Print each fault that the checks find, with evidence and remedy; return 1 if there is one."""
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
