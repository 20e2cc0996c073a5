"""The prose of the documentation keeps its bar: short sentences, few marks, few relative words
(scripts/prose.py).
"""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("prose", ROOT / "scripts/prose.py")
prose = sys.modules["prose"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prose)
OPEN: set[str] = set()  # pages above the bar, to be rewritten


@pytest.mark.parametrize("page", prose.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_keeps_the_bar(page):
    name = str(page.relative_to(ROOT))
    measured = prose.measure(page.read_text())
    assert measured.within_bar != (name in OPEN), (
        f"{name}: {measured.figures}; 15 words, 1.0 marks, 0.25 relative words"
    )


def test_sentences_are_told_from_code_tables_and_headings():
    page = (
        "# A heading\n\nOne sentence, here. Run `rlinf demo`.\n\n```\nno, prose\n```\n\n* a "
        "point\n* another: b\n\n"
        "| a | b |\n|---|---|\n| short | this cell, which has eight words, is counted too |\n"
    )
    assert prose.sentences(page) == [
        "One sentence, here.",
        "Run CODE.",
        "a point",
        "another: b",
        "this cell, which has eight words, is counted too",
    ]
    assert prose.measure(page) == prose.Prose(5, 18, 4, 1)
