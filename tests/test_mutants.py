"""The sample of mutants is drawn fairly, what was not caught is said where it is, and explanations
fit the code.
"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
tomllib = pytest.importorskip("tomllib", reason="mutants are made in Python 3.11 or newer")
sys.path[:0] = [str(ROOT / "scripts")]
import mutants  # noqa: E402

ENTRIES = tomllib.loads(mutants.EXPLAINED.read_text())["mutant"]


@pytest.mark.parametrize(
    "entry", ENTRIES, ids=lambda entry: f"{Path(entry['file']).stem}.{entry['function']}"
)
def test_what_is_explained_is_still_in_the_code(entry):
    source = (ROOT / entry["file"]).read_text()
    removed = [line[2:] for line in entry["diff"].strip().splitlines() if line.startswith("- ")]
    assert removed and all(line in source for line in removed), (
        "take the entry out: its line has changed"
    )
    assert entry["function"].split(".") in [name for name, _ in mutants.functions(source)]
    assert len(entry["why"]) > 20 and set(entry) == {"file", "function", "diff", "why"}


def test_every_module_has_its_share_of_the_sample():
    assert mutants.proportional({"a": 100, "b": 50, "c": 1, "empty": 0}, 30) == {
        "a": 20,
        "b": 10,
        "c": 0,
    }
    assert sum(mutants.proportional({"a": 7, "b": 7, "c": 7}, 10).values()) == 10
    assert mutants.proportional({"a": 3, "b": 2}, 100) == {"a": 3, "b": 2}, "no more than there are"


def test_modules_of_a_room_leave_out_what_is_generated():
    paths = mutants.modules_of("bridge")
    assert "rlinf_core/deploy/bridge/server.py" in paths and not any(
        "_pb2" in path for path in paths
    )
    assert "rlinf_core/core/atomic_io.py" in mutants.modules_of("episodes")


@pytest.mark.parametrize("room", mutants.ROOMS)
def test_a_room_has_modules_and_tests(room):
    """A folder that was moved would leave a room empty, and its score perfect."""
    for source in mutants.ROOMS[room].sources:
        assert (ROOT / source).is_file() or list((ROOT / source).rglob("*.py")), source
    for tests in mutants.ROOMS[room].tests:
        assert (ROOT / tests).is_file() or list((ROOT / tests).rglob("test_*.py")), tests


def test_the_length_check_of_zip_is_no_mutant_and_what_it_pairs_is():
    def same(old, new):
        return mutants.differs_in_strict_only(
            *(mutants.ast.parse(f"def {name}(): {code}").body[0] for name, code in (old, new))
        )

    old = ("x_f__mutmut_orig", "zip(a, b, strict=True)")
    for other in ("zip(a, b, strict=False)", "zip(a, b, strict=None)", "zip(a, b)"):
        assert same(old, ("x_f__mutmut_3", other))
    assert not same(old, ("x_f__mutmut_4", "zip(None, b, strict=True)"))
    assert not same(old, ("x_f__mutmut_5", "zip(b, strict=True)"))


def test_a_sentence_in_other_letters_is_no_mutant_and_anything_else_is():
    def differs(old, new):
        return not mutants.is_rewording(
            *(mutants.ast.parse(f"def f(): {code}") for code in (old, new))
        )

    assert not differs("g('Two words')", "g('two words')") and not differs(
        "g('a b')", "g('XXa bXX')"
    )
    for part in ("'XXworksXX'", "'WORKS'"):
        assert not differs("g('This ' 'works')", f"g('This ' {part})")
    for old, new in (
        ("g('word')", "g('WORD')"),
        ("g('Two words', 1)", "g('Two words', 2)"),
        ("g('Two words')", "g(None)"),
        ("g('a b')", "g('a c')"),
        ("g(1 < 2)", "g(1 <= 2)"),
    ):
        assert differs(old, new)


def test_nodes_lie_in_the_box_where_they_are_imported_from():
    assert (
        mutants.mutmut_path("ros_ws/src/rlinf_ros/rlinf_ros/timer_phase.py")
        == "src/rlinf_ros/timer_phase.py"
    )
    assert mutants.mutmut_path("rlinf_core/core/atomic_io.py") == "rlinf_core/core/atomic_io.py"


def mutant(status, room="replay", **fields):
    return mutants.Mutant("m", room, "rlinf_core/data/replay.py", status, **fields)


def test_the_score_counts_what_could_be_caught():
    sample = [
        mutant("killed"),
        mutant("timeout"),
        mutant("survived"),
        mutant("no tests"),
        mutant("explained"),
        mutant("killed", "interlock"),
    ]
    result = mutants.summary(sample, 3, 12.4)
    assert (result["score"], result["interlock_score"]) == (60.0, 100.0)
    assert (
        result["mutants"],
        result["interlock_mutants"],
        result["survivors"],
        result["explained"],
    ) == (6, 1, 2, 1)
    assert (result["seed"], result["seconds"], len(result["listed"])) == (3, 12, 3)


def test_rooms_of_an_earlier_run_stand_beside_those_of_this_one():
    before = mutants.summary(
        [mutant("survived"), mutant("killed", "interlock"), mutant("survived", "interlock")],
        3,
        10.0,
    )
    again = mutants.summary([mutant("killed"), mutant("killed")], 3, 5.0)
    both = mutants.merge_results(before, again)
    assert (both["mutants"], both["survivors"], both["score"], both["interlock_score"]) == (
        4,
        1,
        75.0,
        50.0,
    )
    assert (both["seconds"], [entry["room"] for entry in both["listed"]]) == (15, ["interlock"])
    with pytest.raises(mutants.RlinfError, match="expected a run of seed 4, got one of seed 3"):
        mutants.merge_results(before, mutants.summary([], 4, 1.0))


def test_an_explanation_takes_a_mutant_out_only_where_it_says():
    entry = ENTRIES[0]
    fields = {"function": entry["function"], "diff": entry["diff"].strip()}
    hit, elsewhere, caught = (
        mutants.Mutant("m", "algorithms", file, status, **fields)
        for file, status in (
            (entry["file"], "survived"),
            ("rlinf_core/other.py", "survived"),
            (entry["file"], "killed"),
        )
    )
    mutants.mark_explained([hit, elsewhere, caught])
    assert [m.status for m in (hit, elsewhere, caught)] == [
        "explained",
        "survived",
        "killed",
    ] and hit.why == entry["why"]


def test_a_survivor_is_told_with_its_line():
    path = "rlinf_core/algorithms/iql/learner.py"
    mutant = mutants.Mutant(
        "rlinf_core.algorithms.iql.learner.x_expectile_loss__mutmut_4", "algorithms", path
    )
    diff = "\n".join(
        [
            "--- a",
            "+++ b",
            "@@ -1,3 +1,3 @@",
            " def expectile_loss(...)",
            '     """Words."""',
            "-    return old",
            "+    return new",
        ]
    )
    function, line, changed = mutants._locate(mutant, diff)
    assert (function, changed) == ("expectile_loss", "- return old\n+ return new")
    assert "return" in (ROOT / path).read_text().splitlines()[line - 1]


@pytest.mark.parametrize(
    "options, words",
    [
        (
            ["--only", "zzz"],
            "modules with 'zzz' in their path, in the rooms interlock, bridge; there are none",
        ),
        (["--again", "none.json"], "none.json, of modules that are still there"),
    ],
)
def test_where_there_is_nothing_to_run_one_line_says_so(
    options, words, tmp_path, monkeypatch, capsys
):
    (tmp_path / "none.json").write_text('{"listed": []}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mutants.py", *options, "--rooms", "interlock", "bridge"])
    assert mutants.main() == 2
    assert words in capsys.readouterr().err
