"""Names say the thing they hold: no part of one is a participle, pronoun or verb of speech
(CONTRIBUTING.md, Style).
"""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DENIED = frozenset(
    [
        "said",
        "told",
        "asked",
        "heard",
        "found",
        "seen",
        "known",
        "whole",
        "own",
        "each",
        "way",
        "kept",
        "made",
        "there",
        "beside",
        "apart",
    ]
)
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
OF_LIBRARIES = {"connection_made", "parse_known_args"}  # asyncio's and argparse's methods


def denied_names(tree: ast.AST) -> set[str]:
    """Return the names with a denied word that a module defines.

    Looks at functions but tests, classes, arguments, variables and attributes; ``asked_at``,
    ``KEPT_S`` and ``AskedFor`` are names with a denied word, too.
    """
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {
        name
        for name in names - OF_LIBRARIES
        if not name.startswith("test_") and DENIED & {word.lower() for word in WORD.findall(name)}
    }


def test_no_name_has_a_participle_or_a_verb_of_speech():
    listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split()
    files = [name for name in listed if "pb2" not in name and (ROOT / name).exists()]
    names_by_file = {name: denied_names(ast.parse((ROOT / name).read_text())) for name in files}
    assert len(files) > 500
    assert {name: sorted(names) for name, names in names_by_file.items() if names} == {}


def test_a_denied_name_is_noticed():
    code = (
        "class AskedFor:\n  def f(said):\n    self._kept = KEPT_S = 1\n    for each in []:\n   "
        "   heard_at = 2"
    )
    assert denied_names(ast.parse(code)) == {
        "AskedFor",
        "said",
        "_kept",
        "KEPT_S",
        "each",
        "heard_at",
    }
    assert denied_names(ast.parse("def test_seen():\n    wayward = apartment = 1")) == set()
