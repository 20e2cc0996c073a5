"""A whole trainer that rolls out in stages: it learns, a station tries what it learned, and a
restart changes nothing.
"""

import json
import subprocess
import sys

import pytest

from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies.serialization import load_policy
from rlinf_core.recipes import load_recipe
from tests.messages import record
from tests.trainer.test_stations import SMALL, Station, port  # noqa: F401 (a fixture)

pytestmark = pytest.mark.timed

STAGED = (
    "release.staged=true",
    "release.episodes=2",
    "release.interlock=false",
    "release.odds_ratio=100.0",
    "release.alpha=0.4",
    "online.max_staleness=50",
    "online.updates_per_step=3",
)


@pytest.mark.timeout(240)
def test_what_is_learned_is_tried_at_one_station_and_a_restarted_trainer_knows_what_it_decided(
    task, tmp_path, port
):
    recipe, run_dir = load_recipe("demo", [*SMALL, *STAGED, port]), tmp_path / "run"

    def play(station, version, names, success=True):
        def change(topic, number, message):
            if topic == "episode":
                message.policy_version = version

        for name in names:
            folder = record(
                Spool(tmp_path / "spool"), station.spec, name, success=success, change=change
            ).close()
            station.client.upload(folder)

    def first_life(station):
        other = BridgeClient(recipe.bridge.address, "b", tokens=[tmp_path / "run/bridge.token"])
        station.wait(lambda r: "sft_left" in r.metrics)
        station.send("first", mode="demonstration", start=7.0)
        station.send("second", mode="demonstration", start=7.0)
        station.wait(lambda r: r.policy_version == 1)
        assert other.next_policy(-1, tmp_path / "b", wait_s=30).version == 1, (
            "the first is that of all"
        )
        play(station, 1, ("a1", "a2"))
        station.wait(lambda r: r.policy_version > 1)
        tried = station.client.next_policy(1, tmp_path / "a")
        assert tried.version > 1 and load_policy(tried.path, station.spec)
        play(station, tried.version, ("a3", "a4"), success=False)
        station.wait(lambda r: r.policy_version != tried.version)
        assert (
            other.report(0, 1).policy_version == 1
            and other.next_policy(1, tmp_path / "b", wait_s=0.2) is None
        )
        other.close()
        refused.append(tried.version)

    refused = []
    Station(recipe, task, tmp_path, first_life).feed(run_dir)
    decided = json.loads((run_dir / "release.json").read_text())
    assert decided["current"] == 1 and list(decided["refused"]) == [
        str(version) for version in refused
    ]

    def second_life(station):
        station.wait(lambda r: r.phase == "online" and r.updates)
        play(station, 1, ("a5", "a6"))  # what the next one is compared with
        status = station.wait(lambda r: r.policy_version > refused[0])
        command = [sys.executable, "-m", "rlinf_core.cli.main", "fleet", "promote", str(run_dir)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert f"version {status.policy_version} goes to all stations: by hand" in output
        other = BridgeClient(recipe.bridge.address, "b", tokens=[tmp_path / "run/bridge.token"])
        assert other.report(0, 1).policy_version == status.policy_version
        other.close()

    Station(recipe, task, tmp_path, second_life).feed(run_dir)
    assert json.loads((run_dir / "release.json").read_text())["previous"] == [1]
