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
# Verbs of speech, pronouns and auxiliaries: no name in the packages is one of these alone.
DENIED_ALONE = frozenset(
    [
        "say",
        "says",
        "tell",
        "tells",
        "telling",
        "hear",
        "hears",
        "hearing",
        "overhear",
        "overhears",
        "overheard",
        "speak",
        "speaks",
        "spoke",
        "speaker",
        "asks",
        "asker",
        "askers",
        "asking",
        "had",
        "some",
        "alone",
        "stood",
        "stands",
        "standstill",
        "begun",
        "began",
        "wanted",
        "wants",
        "who",
        "whom",
        "whose",
        "how",
        "well",
        "goes",
        "gone",
        "comes",
        "lies",
        "takes",
        "mine",
        "ours",
        "theirs",
        "aside",
        "anew",
        "untold",
        "unheard",
        "it",
        "its",
        "what",
        "why",
        "which",
        "anybodys",
        "witnessed",
        "much",
        "instead",
        "brought",
        "came",
        "ahead",
        "enough",
    ]
)
PACKAGES = ("rlinf_core/", "ros_ws/src/", "sim_bridges/")
# These parts still have such names.
UNREAD = ("rlinf_core/agentic/jail_drill",)
# Keys of files, protocols and the command line, which keep their names, and the command `rlinf why`.
FIELDS = {
    "rlinf_core/cli/compare.py": {"why"},
    "rlinf_core/core/usage.py": {"began"},
    "rlinf_core/deploy/releases/record.py": {"begun"},
    "rlinf_core/page/controls.py": {"what"},
    "rlinf_core/tasks/rewards/geometry.py": {"what"},
}
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
OF_LIBRARIES = {"connection_made", "parse_known_args"}  # asyncio's and argparse's methods


def defined_names(tree: ast.AST) -> set[str]:
    """Return the names of a module's functions, classes, arguments, variables and attributes."""
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
    return names


def denied_names(tree: ast.AST) -> set[str]:
    """Return the names with a denied word that a module defines.

    Leaves out tests; ``asked_at``, ``KEPT_S`` and ``AskedFor`` are names with a denied word, too.
    """
    return {
        name
        for name in defined_names(tree) - OF_LIBRARIES
        if not name.startswith("test_") and DENIED & {word.lower() for word in WORD.findall(name)}
    }


def test_no_name_has_a_participle_or_a_verb_of_speech():
    listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split()
    files = [name for name in listed if "pb2" not in name and (ROOT / name).exists()]
    names_by_file = {name: denied_names(ast.parse((ROOT / name).read_text())) for name in files}
    assert len(files) > 500
    assert {name: sorted(names) for name, names in names_by_file.items() if names} == {}


def denied_alone(tree: ast.AST) -> set[str]:
    """Return the names that are a denied word alone, as ``_say``, ``who`` and ``OURS``."""
    return {name for name in defined_names(tree) if name.strip("_").lower() in DENIED_ALONE}


def test_no_name_of_the_packages_is_a_verb_of_speech_or_a_pronoun_alone():
    listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).split()
    files = [
        name
        for name in listed
        if name.startswith(PACKAGES) and not name.startswith(UNREAD) and (ROOT / name).exists()
    ]
    names = {name: denied_alone(ast.parse((ROOT / name).read_text())) for name in files}
    assert len(files) > 300
    assert {name: rest for name in files if (rest := names[name] - FIELDS.get(name, set()))} == {}
    assert {name for name in FIELDS if not FIELDS[name] <= names.get(name, set())} == set()


def test_a_name_that_is_a_denied_word_alone_is_noticed():
    code = "class Asking:\n  def _say(self, who):\n    self.ours = OURS = how_many = 1"
    assert denied_alone(ast.parse(code)) == {"Asking", "_say", "who", "ours", "OURS"}


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
