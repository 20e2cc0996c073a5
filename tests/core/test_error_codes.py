"""Each error of rlinf has a stable code with cause and remedy."""

import ast
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_core.cli.main import main, run
from rlinf_core.core.error_codes import OTHER, code_by_place, error_kinds
from rlinf_core.core.errors import (
    REFUSED,
    AnswerError,
    DeviceError,
    IngestError,
    RecipeError,
    RestartLimitError,
    RlinfError,
)
from rlinf_core.recipes import load_recipe

ROOT = Path(__file__).resolve().parents[2]
PINNED = Path(__file__).with_name("error_codes.txt")
ROOTS = [
    (ROOT / "rlinf_core", ROOT),
    (ROOT / "sim_bridges", ROOT),
    *(
        (path.parent / path.parent.name, path.parent)
        for path in sorted(ROOT.glob("ros_ws/src/*/package.xml"))
    ),
]


def modules():
    """Yield the dotted name and the tree of each module that ships."""
    for package, folder in ROOTS:
        for path in sorted(package.rglob("*.py")):
            if "_pb2" not in path.name:
                name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(
                    ".__init__"
                )
                yield name, ast.parse(path.read_text())


def name_of(node):
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


@pytest.fixture(scope="module")
def errors():
    """Each error that the code makes: (module, line, code)."""
    trees = dict(modules())
    bases = {"RlinfError": []}  # of each class of errors: the classes above it, nearest first
    while True:
        more = {
            node.name: [base, *bases[base]]
            for tree in trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.name not in bases
            for base in map(name_of, node.bases)
            if base in bases
        }
        if not more:
            break
        bases |= more
    rows = []
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (kind := name_of(node.func)) in bases:
                named = [keyword.value.value for keyword in node.keywords if keyword.arg == "code"]
                rows.append(
                    (
                        module,
                        node.lineno,
                        named[0] if named else code_by_place([kind, *bases[kind]], module),
                    )
                )
    return rows


def test_every_error_has_a_code_and_every_code_an_error(errors):
    assert len(errors) > 800
    assert [(module, line) for module, line, code in errors if code is None] == [], (
        "give it a row in error_codes.yaml"
    )
    assert {code for *_, code in errors} == set(error_kinds()) - {OTHER}


def test_a_module_without_a_row_has_no_code():
    assert code_by_place(["RlinfError"], "rlinf_core.newcomer") is None
    assert code_by_place(["SpecError", "RlinfError"], "rlinf_core.policiesx") is None


def test_a_code_keeps_its_meaning():
    """A title may be worded anew here and there; a code that is in the list never goes, nor becomes
    another kind.
    """
    pinned = dict(line.split(" ", 1) for line in PINNED.read_text().splitlines())
    assert {code: kind.title for code, kind in error_kinds().items()} == pinned, (
        "add new codes to error_codes.txt"
    )


def test_every_kind_has_cause_remedy_and_example_in_sentences():
    for kind in error_kinds().values():
        assert kind.cause.endswith(".") and kind.remedy.endswith("."), kind.code
        assert kind.example and "RL-E" not in kind.example, kind.code


def test_every_module_of_the_table_exists():
    for kind in error_kinds().values():
        for entry in kind.raised_in:
            module = entry.partition(":")[0]
            assert module[0].isupper() or importlib.util.find_spec(module), f"{kind.code}: {entry}"


def raised(make):
    with pytest.raises(RlinfError) as caught:
        make()
    return caught.value


def load(name):
    load_recipe(name, [])


def test_the_code_comes_from_the_module_that_raises():
    error = raised(lambda: load("demmo"))
    assert (
        error.code == "RL-E104"
        and error.with_code().endswith(" [RL-E104]")
        and "RL-E" not in str(error)
    )


def test_a_class_with_one_kind_has_its_code_anywhere():
    assert AnswerError("x").code == "RL-E609"
    assert (IngestError("x").code, RestartLimitError("x").code) == ("RL-E703", "RL-E702")
    assert RlinfError("x").code == OTHER


def test_an_error_around_another_one_has_the_code_of_that_one():
    def wrap():
        try:
            load("demmo")
        except RecipeError as error:
            raise RlinfError(f"around: {error}") from error

    assert raised(wrap).code == "RL-E104"


@pytest.mark.parametrize("kind", [RecipeError, RlinfError, DeviceError])
def test_the_code_goes_to_another_process(kind):
    error = raised(lambda: load("demmo"))
    other = pickle.loads(pickle.dumps(error))
    assert other.__traceback__ is None and (other.code, str(other)) == (error.code, str(error))
    assert pickle.loads(pickle.dumps(kind("x"))).code == OTHER
    assert pickle.loads(pickle.dumps(RlinfError("x", code="RL-E205"))).code == "RL-E205"


def test_a_command_in_a_process_of_its_own_shows_the_code_too():
    done = subprocess.run(
        [sys.executable, "-m", "rlinf_core.cli.main", "config", "demmo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stderr.rstrip().endswith("[RL-E104]")


@pytest.mark.parametrize(
    ("line", "code", "name"),
    [
        (["config", "demmo"], 2, "RL-E104"),
        (["config", "demo_tiny", "--set", "online.max_minute=1"], 2, "RL-E102"),
        (["eval", "missing.safetensors"], 1, "RL-E301"),
        (["explain", "RL-E999"], 2, "RL-E110"),
    ],
)
def test_a_command_shows_the_code_and_ends_with_2_for_wrong_usage(capsys, line, code, name):
    assert main(line) == code
    assert capsys.readouterr().err.rstrip().endswith(f"[{name}]")


def test_a_process_that_is_watched_ends_with_the_code_of_its_watcher(capsys):
    assert run(["config", "demmo"], REFUSED) == REFUSED


@pytest.mark.parametrize("text", ["RL-E104", "rl-e104", "E104", "104", "[RL-E104]"])
def test_explain_prints_cause_and_remedy(capsys, text):
    kind = error_kinds()["RL-E104"]
    assert main(["explain", text]) == 0
    out = capsys.readouterr().out
    assert kind.title in out and kind.cause in out and kind.remedy in out and "exit code 2" in out


def test_explain_alone_lists_all_codes(capsys):
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert all(code in out for code in error_kinds())
