"""The page's controls: holder, access, the list of episodes, and a sentence per cause."""

import json
import math
import re
from pathlib import Path

import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.launch.graph import check_operator, operator_process, station_processes
from rlinf_core.page.access import Web, token_of
from rlinf_core.page.controls import (
    FRESH_S,
    HANDOVER_S,
    MAX_PRESS_AGE_S,
    Controls,
    MotionInput,
    parse_message,
)
from rlinf_core.page.server import without_nan
from rlinf_core.page.views import HOLD_CAUSES, History, cause_meaning
from rlinf_core.recipes import load_recipe


def hand(seq, shown_at, held=True):
    return MotionInput(kind="motion", seq=seq, shown_at=shown_at, held=held, active=False)


def test_only_the_page_with_the_controls_is_heard_in_order_and_with_a_fresh_picture():
    controls = Controls()
    assert not controls.accepts(1, hand(0, 10.0), 10.0), "nobody has them unasked"
    controls.take(1, 10.0)
    assert controls.accepts(1, hand(0, 10.0), 10.1)
    assert not controls.accepts(2, hand(1, 10.1), 10.1) and not controls.accepts(
        1, hand(0, 10.1), 10.1
    )
    assert (
        not controls.accepts(1, hand(1, 10.0), 10.0 + FRESH_S + 0.01) and controls.late_s > FRESH_S
    )
    assert not controls.accepts(1, hand(2, 11.0), 10.5), "a picture of the future is none"
    assert controls.accepts(1, hand(3, 10.5), 10.6) and controls.late_s == 0.0
    controls.leave(2)
    assert controls.holder == 1
    controls.leave(1)
    assert not controls.accepts(1, hand(4, 10.6), 10.6)


def test_a_page_that_is_replaced_in_motion_falls_silent_first():
    controls = Controls()
    controls.take(1, 10.0)
    assert controls.accepts(1, hand(0, 10.0), 10.0)
    controls.take(2, 10.1)
    assert not controls.accepts(2, hand(0, 10.2, held=False), 10.2)
    assert controls.accepts(2, hand(1, 10.7, held=False), 10.1 + HANDOVER_S + 0.01)
    controls.take(1, 11.0)
    assert controls.accepts(1, hand(0, 11.0), 11.0), "at rest nothing need end"


def test_a_button_counts_within_a_second_of_what_its_page_showed_and_late_where_it_does_not_say():
    pressed = parse_message('{"kind": "request", "what": "arm", "shown_at": 10.0}')
    assert (
        pressed.late_s(10.0 + MAX_PRESS_AGE_S) == 0.0
        and pressed.late_s(19.0) == 9.0
        and pressed.late_s(9.5)
    )
    assert parse_message('{"kind": "request", "what": "arm"}').late_s(100.0) == 100.0


def test_the_longest_cause_that_an_interlock_can_say_can_be_reset():
    cause = "robot:" + "x" * 200
    assert (
        parse_message(json.dumps({"kind": "request", "what": "reset", "cause": cause})).cause
        == cause
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"kind": "motion"}',
        '{"kind": "fire"}',
        '{"kind": "request", "what": "rm"}',
        "\x00",
        '{"kind": "acknowledgement", "x": 1}',
        '{"kind": "request","what":"arm\\n"}',
        json.dumps(dict(kind="request", what="reset", cause="x" * 301)),
        *(
            json.dumps(dict(kind="motion", seq=0, shown_at=0.0, held=True, active=False) | bad)
            for bad in (
                {"axes": {"x": 1.01}},
                {"axes": {"x": math.nan}},
                {"axes": {"w": 0.1}},
                {"seq": -1},
                {"seq": 0.5},
                {"held": 1},
                {"held": "yes"},
                {"shown_at": "1"},
            )
        ),
    ],
)
def test_what_is_no_word_is_none(text):
    with pytest.raises(ValueError):
        parse_message(text)


def test_beyond_this_machine_a_token_is_needed_and_long_enough(tmp_path):
    for host in ("127.0.0.1", "localhost", "::1"):
        assert token_of(Web(port=1, host=host)) == ""
    for host in ("0.0.0.0", "10.0.0.2", "robot.lab", "::"):
        with pytest.raises(
            RecipeError, match="station.web.token_file: expected a file, since station.web.host"
        ):
            token_of(Web(port=1, host=host))
    file = tmp_path / "token"
    for text, wrong in (
        (None, "No such file"),
        ("", "got 0"),
        ("short\n" + "x" * 30, "got 5"),
        ("é" * 30, "got 30"),
    ):
        if text is not None:
            file.write_text(text)
        with pytest.raises(RecipeError, match=f"token_file: expected .*{wrong}"):
            token_of(Web(port=1, host="0.0.0.0", token_file=str(file)))
    file.write_text("0123456789abcdef0123456789abcdef\n")
    assert (
        token_of(Web(port=1, host="0.0.0.0", token_file=str(file)))
        == "0123456789abcdef0123456789abcdef"
    )
    with pytest.raises(RecipeError, match="token_file"):
        station_processes(
            load_recipe("demo", ["station.web={port: 8080, host: 0.0.0.0}"]), tmp_path
        )


@pytest.mark.parametrize(
    "overrides, kinds",
    [
        ([], ["page"]),
        (["station.operator={kind: keyboard}"], ["page"]),
        (
            [
                "station.operator={kind: joy}",
                "station.second_operator={kind: pedal, device: /dev/x}",
            ],
            ["joy", "pedal", "page"],
        ),
        (["station.operator={kind: page, scale: 0.3}"], ["page"]),
    ],
)
def test_a_station_with_a_page_has_an_operator_who_has_it_and_an_e_stop_more(
    tmp_path, overrides, kinds
):
    served = load_recipe("demo", ["station.web.port=8080", *overrides])
    processes = {process.name: process for process in station_processes(served, tmp_path)}
    operator = processes["operator"].parameters
    assert [
        operator[key]["kind"] for key in ("settings", "second_operator", "page") if key in operator
    ] == kinds
    assert processes["interlock"].parameters["estops"] == ["page"]
    without = {
        process.name: process
        for process in station_processes(load_recipe("demo", overrides), tmp_path)
    }
    assert "page" not in without and without["interlock"].parameters["estops"] == [""]


@pytest.mark.parametrize("kind", ["pedal, device: /dev/a", "page", "spacemouse"])
def test_two_devices_of_one_kind_are_refused_as_one_would_not_be_heard(tmp_path, kind):
    other = kind.replace("/a", "/b")
    recipe = load_recipe(
        "demo", [f"station.operator={{kind: {kind}}}", f"station.second_operator={{kind: {other}}}"]
    )
    for ask in (
        check_operator,
        operator_process,
        lambda recipe: station_processes(recipe, tmp_path),
    ):
        with pytest.raises(
            RecipeError,
            match=f"station.second_operator.kind: expected .* got {kind.split(',')[0]} for both",
        ):
            ask(recipe)
    twice = load_recipe(
        "demo", ["station.operator={kind: keyboard}", "station.second_operator={kind: keyboard}"]
    )
    assert operator_process(twice).parameters["settings"] == {"kind": "keyboard"}, (
        "as teleop's beside another"
    )


def test_curves_go_on_after_a_restart_and_a_line_that_was_cut_is_left_out(tmp_path):
    file = tmp_path / "page.jsonl"
    for number in range(30):
        History(file).add(
            mode="train", success=number >= 10, intervened=1.0 if number < 20 else 0.5
        )
    History(file).add(mode="demonstration", success=True, intervened=1.0)
    with file.open("ab") as cut:
        cut.write(b'\xff\n{"mode": "tra')
    History(file).add(mode="demonstration", success=False, intervened=1.0)
    curves = History(file).curves()
    assert len(curves["success"]) == 30 and curves["demonstrations"] == 2, (
        "the next one is none of it"
    )
    assert (
        curves["success"][0] == 0.0
        and curves["success"][-1] == 1.0
        and curves["success"][19] == 0.5
    )
    assert curves["intervened"][-1] == 0.75, "ten of the last twenty by half"


def test_every_cause_of_the_interlock_has_a_sentence():
    sources = "".join(
        Path(f"rlinf_core/interlock/{name}.py").read_text() for name in ("core", "safety_checks")
    )
    matches = re.findall(r'(?:hold|fault|enter)\((?:Mode\.\w+, )?"(\w+)"|f?"(\w+):\{', sources)
    causes = {cause for pair in matches for cause in pair}
    causes |= {
        "stale_state",
        "state_jump",
        "state_frame",
        "state_units",
        "contact",
        "obstacle",
        "distance_silent",
    }
    causes |= {"distance_units", "outside_box"}
    assert {"estop", "stale_command", "silent", "robot", "divergence"} <= causes
    assert not {
        cause
        for cause in causes
        if cause and cause not in HOLD_CAUSES and not cause.startswith("mode")
    }
    assert cause_meaning("estop:pendant") == "The e-stop 'pendant' is pressed."
    assert cause_meaning("robot:a{b}") == "The robot reports a fault: a{b}."
    assert (
        cause_meaning("never heard of") == "never heard of"
        and cause_meaning("") == ""
        and cause_meaning("odd:{}") == "odd:{}"
    )


def test_json_has_no_number_that_is_none():
    assert without_nan({"a": [math.inf, 1.0], "b": {"c": math.nan}}) == {
        "a": [None, 1.0],
        "b": {"c": None},
    }
