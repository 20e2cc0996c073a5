"""Output of commands: tables on the terminal, and results as JSON files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import escape_ascii

TABLE_WIDTH = 200  # without a terminal
NUMBER_COLUMNS = ("MB", "steps", "seconds", "messages", "Hz", "first [s]", "last [s]")


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as wide as the terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        table.add_column(
            escape(head), overflow="fold", justify="right" if head in NUMBER_COLUMNS else "left"
        )
    for row in rows:
        table.add_row(*(escape(escape_ascii(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False).print(table)


def write_json(file: Path | None, result: Mapping[str, Any]) -> None:
    """Write a command's result to the file of its option ``--json``, if it was given."""
    if file is not None:
        file.write_text(json.dumps(result) + "\n")
