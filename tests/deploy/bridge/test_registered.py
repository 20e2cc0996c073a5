"""The registration of stations, and a trainer that learns for other stations."""

import json
from dataclasses import replace

import pytest

from rlinf_core.deploy.bridge import admission
from rlinf_core.deploy.bridge.client import BridgeClient
from tests.deploy.bridge.conftest import serve
from tests.deploy.bridge.test_policies_down import publish, weights


@pytest.fixture
def spec_trainer(tmp_path, task):
    trainer = serve(tmp_path, specs=task.spec)
    yield trainer
    trainer.stop()


@pytest.fixture
def station(spec_trainer):
    client = BridgeClient(f"127.0.0.1:{spec_trainer.port}", "a")
    yield client
    client.close()


def specs_json(spec):
    return json.dumps(spec.to_dict())


def test_a_station_is_asked_who_it_is_until_it_has_said_so_and_the_trainer_keeps_it(
    spec_trainer, station, task
):
    assert not station.report(0, -1).registered
    assert station.register(specs_json(task.spec), "beef") == ""
    assert station.report(0, -1).registered
    entry = spec_trainer.registered.entries["a"]
    assert (entry.spec_hash, entry.limits_hash, entry.refusal_reason) == (
        task.spec.hash,
        "beef",
        "",
    ) and entry.software


def test_a_station_of_other_specs_hears_what_differs_gets_no_policy_and_begins_no_episode(
    spec_trainer, station, task, tmp_path, random, monkeypatch
):
    monkeypatch.setattr(spec_trainer, "report", lambda: {"accepting": True, "phase": "online"})
    publish(spec_trainer, 1, weights(random, 1))
    why = station.register(specs_json(replace(task.spec, control_hz=7.0)), "beef")
    assert why.startswith("station 'a': specs: expected") and "control_hz: 10.0 against 7.0" in why
    answer = station.report(0, -1)
    assert answer.registered and not answer.accepting and answer.message == why
    assert station.next_policy(-1, tmp_path / "station", wait_s=0.1) is None
    other = BridgeClient(f"127.0.0.1:{spec_trainer.port}", "b")
    assert (
        other.next_policy(-1, tmp_path / "other", wait_s=5.0).version == 1
        and other.report(0, -1).accepting
    )
    other.close()
    assert station.register(specs_json(task.spec), "beef") == "", (
        "it was started again, with the task of the trainer"
    )
    assert (
        station.next_policy(-1, tmp_path / "station", wait_s=5.0).version == 1
        and station.report(0, -1).accepting
    )


@pytest.mark.parametrize(
    "specs", ["", "[1]", "{", "[" * 60_000, '{"observation": 3}', "x" * 70_000, "\x1b[31m{"]
)
def test_specs_that_cannot_be_read_are_refused_by_name_and_bounded(spec_trainer, station, specs):
    why = station.register(specs, "beef" * 1000)
    assert (
        "station 'a': specs: expected JSON of a StationSpec, at most 65536 characters, got" in why
    )
    assert len(why) <= admission.MAX_REASON and "\x1b" not in why
    assert len(spec_trainer.registered.entries["a"].limits_hash) <= 200


def test_stations_cost_a_bounded_amount(task):
    registry = admission.Registrations(task.spec, limit=3)
    for number in range(9):
        registry.register(f"s{number}", admission.pb.Registration(specs=specs_json(task.spec)))
    assert list(registry.entries) == ["s6", "s7", "s8"]
