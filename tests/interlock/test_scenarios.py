"""Scenarios of the drill and faults of the injector are read strictly: what is wrong is told with
its line.
"""

from pathlib import Path

import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock.scenarios import Corrupt, Drop, load, read_fault

GOOD = "{name: a, inject: {route: wrench, kind: drop}, expect: HOLD, within_ms: 30"


@pytest.mark.parametrize(
    "text, message",
    [
        (
            f"- {GOOD}}}\n- {GOOD}, withn_ms: 3}}",
            "line 2: unknown key 'scenarios[1].withn_ms' (did you mean 'within_ms'?)",
        ),
        (
            f"- {GOOD}}}\n- {{name: a, say: {{estop: press}}, expect: FAULT, within_ms: 135}}",
            "line 2: 'scenarios[1].say' has a new name. Write scenarios[1].inputs instead",
        ),
        (
            f"- {GOOD}, inputs: {{estop: pres}}}}",
            "'scenarios[0].inputs.estop': expected one of released, press, silent",
        ),
        (
            f"- {GOOD}, requirement: X3}}",
            "line 1: 'scenarios[0].requirement': expected S and a number, got str 'X3'",
        ),
        (
            f"- {GOOD}, then: FAULT}}",
            "'scenarios[0].then': expected 'within_ms', 'then' and 'then_within_ms' together",
        ),
        (f"- {GOOD}, process: policy}}", "expected 'process' and 'signal' together"),
        (
            f"- {GOOD}, process: policy, signal: KILL, seconds: 2}}",
            "seconds': expected none without signal: STOP",
        ),
        (f"- {GOOD}, counts: dropped}}", "'scenarios[0].counts': expected none with 'within_ms'"),
        (
            f"- {GOOD}, others_go_on: true}}",
            "'scenarios[0].others': expected the required state of the right arm",
        ),
        (
            "- {name: a, expect: HELD, process: policy, signal: KILL}",
            "'scenarios[0].expect': expected still, STOP, DISARMED",
        ),
        (
            "- {name: a, expect: HOLD, process: policy, signal: KILL}",
            "expect': expected ACTIVE without 'within_ms'",
        ),
        ("- {name: a, expect: ACTIVE}", "expected a disturbance"),
        (
            "- {name: a, expect: ACTIVE, inject: {route: wrench, kind: drop, value: 3}}",
            "unknown key 'scenarios[0].inject.value'; known here: fraction, kind, route",
        ),
        ("name: a", "'scenarios': expected a list, got mapping"),
        ("", "'scenarios': expected a list, got nothing"),
    ],
)
def test_a_scenario(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        load(path)
    assert message in str(error.value) and str(error.value).startswith(f"scenarios {path}")


def test_what_is_not_said_has_its_default():
    assert read_fault("{route: wrench, kind: drop}") == Drop(
        route="wrench", kind="drop", fraction=1.0
    )
    assert read_fault("{route: a, kind: corrupt}") == Corrupt(
        route="a", kind="corrupt", field="data", value="nan"
    )
    [row] = [
        scenario
        for scenario in load(Path("configs/drill.yaml"))
        if scenario.name == "30 N at the tool"
    ]
    assert (row.inject, row.expect, row.within_ms) == (
        Corrupt(route="wrench", kind="corrupt", field="wrench.force.z", value=30.0),
        "HOLD contact",
        55.0,
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("[a", "message: expected readable YAML, got"),
        ("word", "message, line 1: 'inject': expected a mapping"),
        ("", "'inject': expected a mapping"),
        ("{kind: drop}", "'inject.route' is missing"),
        ("{route: a}", "'inject.kind': expected one of none, drop, delay"),
        (
            "{route: a, kind: drpo}",
            "'inject.kind': expected one of none, drop, delay, reorder, repeat, corrupt, offset, "
            "scale, freeze, shift, got 'drpo' (did you mean 'drop'?)",
        ),
        (
            "{route: a, kind: drop, seconds: 3}",
            "unknown key 'inject.seconds'; known here: fraction, kind, route",
        ),
        ("{route: a, kind: repeat, times: 1.5}", "'inject.times': expected int, got float 1.5"),
        ("{route: a, kind: scale, value: nan}", "'inject.value': expected a number, got str 'nan'"),
    ],
)
def test_a_fault(text, message):
    with pytest.raises(RecipeError) as error:
        read_fault(text)
    assert message in str(error.value)
