"""Print claims of docs/ drawn at random, to be compared with the code by a person.

    python scripts/claims.py --seed 1 [--number 60]

A claim is a sentence or a row of a table with a number, a name in code, a path, or "always",
"never", "only", "all", "no". Generated pages (docs/reference) are left out.
benchmarks/results/README.md has the last counts.
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLAIM = re.compile(r"\d|`[^`]+`|\b(always|never|only|all|no)\b", re.I)
MIN_WORDS = 6
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


def claims() -> list[tuple[str, str]]:
    """Return each claim of the pages with its place."""
    rows = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if "reference" in page.parts or page.name == "support_matrix.md":
            continue
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for block in re.split(r"\n\s*\n|\n(?=[|*#]|\d+\. )", text):
            line = " ".join(
                part.strip() for part in block.splitlines() if not part.startswith("    ")
            )
            if not line or line.startswith(("#", "![", "|--")):
                continue
            parts = [line] if line.startswith("|") else SENTENCE.split(line)
            rows += [
                (str(page.relative_to(ROOT)), part)
                for part in parts
                if CLAIM.search(part) and len(part.split()) >= MIN_WORDS
            ]
    return rows


def main() -> None:
    """Print the drawn claims with numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--number", type=int, default=60)
    options = parser.parse_args()
    rows = claims()
    for number, (page, text) in enumerate(
        random.Random(options.seed).sample(rows, options.number), 1
    ):
        print(f"{number}. {page}: {text}")
    print(f"\n{options.number} of {len(rows)} claims")


if __name__ == "__main__":
    main()
