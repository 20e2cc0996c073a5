"""Measure the prose of README.md and docs/: words, punctuation and relative words a sentence.

    python scripts/prose.py [PAGE ...] [--bar]

Code blocks, headings, HTML comments and the generated reference are left out.
A table's cell counts if it has eight words or more. With ``--bar`` only pages above the bar are
listed, and the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORDS, MARKS, RELATIVES = 15.0, 1.0, 0.25
CELL_WORDS = 8
RELATIVE = re.compile(r"\b(?:what|who|whom|whose|which|that|whatever|whoever|whichever)\b", re.I)


class Prose(NamedTuple):
    """Sums over sentences; the figures are means."""

    sentences: int = 0
    words: int = 0
    marks: int = 0
    relatives: int = 0

    @property
    def figures(self) -> tuple[float, float, float]:
        """Words, commas with semicolons and colons, and relative words per sentence."""
        count = max(self.sentences, 1)
        return self.words / count, self.marks / count, self.relatives / count

    @property
    def within_bar(self) -> bool:
        """Whether all three figures, rounded as they are printed, are within the bar."""
        words, marks, relatives = self.figures
        return (
            round(words, 1) <= WORDS
            and round(marks, 2) <= MARKS
            and round(relatives, 2) <= RELATIVES
        )


def pages() -> list[Path]:
    """Return README.md and the pages of docs/, without the generated reference and translations."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return [
        ROOT / "README.md",
        *(page for page in docs if page.parent.name not in ("reference", "zh")),
    ]


def sentences(markdown: str) -> list[str]:
    """Return the sentences of a page, with inline code as one word and links as their text."""
    text = re.sub(r"\A---\n.*?\n---\n", "", markdown, flags=re.S)
    text = re.sub(r"^( *)(```|~~~).*?^\1\2[^\n]*$", "\n", text, flags=re.S | re.M)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"``.+?``|`[^`]+`", "CODE", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>\n]+>|https?://\S+", "", text)
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        plain = re.sub(r"^[>\s]*", "", line)
        if plain.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", plain)]
            blocks += [[cell] for cell in cells if len(cell.split()) >= CELL_WORDS] + [[]]
        elif (
            not plain
            or plain.startswith(("#", "!!!", "---"))
            or line.startswith("    ")
            and not blocks[-1]
        ):
            blocks.append([])
        elif re.match(r"(?:[-*+]|\d+\.) ", plain):
            blocks.append([re.sub(r"^\S+ ", "", plain)])
        else:
            blocks[-1].append(plain)
    parts = (
        re.split(r"(?<=[.!?])[)*_\"']*\s+(?=[A-Z0-9*_(\"'])", " ".join(block))
        for block in blocks
        if block
    )
    return [part for block in parts for part in block if re.search(r"[A-Za-z]{2}", part)]


def measure(markdown: str) -> Prose:
    """Return the sums over a page."""
    parts = sentences(markdown)
    patterns = (
        re.compile(r"[\w'’%/.-]*\w[\w'’%/.-]*"),
        re.compile(r"[,;:](?=\s|$|[)*_\"'])"),
        RELATIVE,
    )
    return Prose(
        len(parts), *(sum(len(pattern.findall(part)) for part in parts) for pattern in patterns)
    )


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--bar", action="store_true", help="list only pages above the bar")
    options = parser.parse_args()
    measured = {page: measure(page.read_text()) for page in options.pages or pages()}
    total = Prose(*map(sum, zip(*measured.values(), strict=True)))
    print(f"{'sentences':>9} {'words':>6} {'marks':>6} {'relative':>8}")
    for page, prose in measured.items():
        if not (options.bar and prose.within_bar):
            _print(prose, str(page.resolve().relative_to(ROOT)))
    _print(total, f"all {len(measured)} pages")
    return int(options.bar and not all(prose.within_bar for prose in measured.values()))


def _print(prose: Prose, name: str) -> None:
    words, marks, relatives = prose.figures
    verdict = "" if prose.within_bar else "  above the bar"
    print(f"{prose.sentences:9} {words:6.1f} {marks:6.2f} {relatives:8.2f}  {name}{verdict}")


if __name__ == "__main__":
    sys.exit(main())
