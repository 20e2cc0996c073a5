"""The timeline of a run: spans on disk, and their conversion to a Chrome or Perfetto trace."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import RlinfError
from rlinf_core.reports.curves import read_events

FILE = "spans.jsonl"
MAX_BYTES = 64 << 20  # size limit of the file; later spans are dropped
Span = tuple[str, str, float, float]  # part, process, begin [s since 1970], seconds


def write_spans(run_dir: Path, spans: deque[Span]) -> None:
    """Append spans to the run's file and clear them. Raises OSError if the disk refuses them."""
    if not spans:
        return
    path = run_dir / FILE
    if not path.exists() or path.stat().st_size < MAX_BYTES:
        text = "".join(
            json.dumps([part, process, round(started_at, 6), round(seconds, 6)]) + "\n"
            for part, process, started_at, seconds in spans
        )
        with path.open("a") as file:
            file.write(text)
    spans.clear()


def trace_of(run_dir: Path) -> dict[str, Any]:
    """Return the trace of a run in Chrome's Trace Event Format, which Perfetto also reads.

    Raises:
        RlinfError: the run has recorded no spans.
    """
    path = run_dir / FILE
    rows: list[Span] = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        try:
            part, process, started_at, seconds = json.loads(line)
            rows.append((str(part), str(process), float(started_at), float(seconds)))
        except (ValueError, TypeError):  # a line that a power cut truncated
            continue
    if not rows:
        raise RlinfError(
            f"{path}: expected the spans of a run, got none. rlinf train writes them during a run"
        )
    decisions = [event for event in read_events(run_dir) if event.get("event") == "placement"]
    start = min(
        [started_at for _, _, started_at, _ in rows] + [event["time"] for event in decisions]
    )
    others = {process for _, process, _, _ in rows} - {"trainer"}
    has_trainer = any(process == "trainer" for _, process, _, _ in rows)
    names = ["trainer"] * has_trainer + sorted(others)
    lanes = {name: number for number, name in enumerate(names)}
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": run_dir.name}}
    ]
    events += [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": name}}
        for name, number in lanes.items()
    ]
    events += [
        {
            "name": part,
            "cat": "turn",
            "ph": "X",
            "pid": 0,
            "tid": lanes[process],
            "ts": 1e6 * (started_at - start),
            "dur": 1e6 * seconds,
        }
        for part, process, started_at, seconds in rows
    ]
    events += [
        {
            "name": f"placement: {event['decision']}",
            "cat": "placement",
            "ph": "i",
            "s": "g",
            "pid": 0,
            "tid": 0,
            "ts": 1e6 * (event["time"] - start),
            "args": event,
        }
        for event in decisions
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
