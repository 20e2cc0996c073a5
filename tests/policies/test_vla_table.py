"""The table of families in docs/howto/vla.md is what benchmarks/vla_references.py has measured."""

import json
from pathlib import Path

from benchmarks.vla_reference_table import table

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_results():
    summary = json.loads((ROOT / "benchmarks/results/vla_references.json").read_text())
    assert table(summary) in (ROOT / "docs/howto/vla.md").read_text()
    assert max(summary["worst_difference"], summary["worst_peft_difference"]) <= 1e-5
    assert all(difference <= 1e-6 for difference in summary["played"].values())
    assert summary["config_keys_unread"] == []
