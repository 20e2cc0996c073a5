"""The whole loop on the real middleware, in real processes."""

import json
import subprocess
import sys

import numpy as np
import pytest

from rlinf_core.episodes import read_episode
from rlinf_core.episodes.checksums import seal
from rlinf_core.launch.graph import trainer_process
from tests.ports import free_port
from tests.ros.demo_runs import Run, check_nothing_lost, online

pytestmark = [pytest.mark.ros, pytest.mark.timeout(600)]


@pytest.mark.lockstep
def test_the_loop_runs_from_demonstrations_to_an_improved_policy(tmp_path):
    with Run(tmp_path, "online.max_env_steps=250", domain=81) as run:
        run.finish()
        versions = [event["version"] for event in run.events("policy") if event["version"] > 0]
        result = run.events("result")[0]
    assert versions == sorted(versions) and versions[-1] >= 2
    assert result["updates"] > 100 and result["env_steps"] >= 250
    assert result["ended"] == f"{result['env_steps']} time steps were played (online.max_env_steps)"
    check_nothing_lost(run)
    demonstrations = [event for event in run.events("episode") if event["mode"] == "demonstration"]
    episode = read_episode(tmp_path / "inbox" / demonstrations[0]["id"])
    assert set(episode.sources) == {"operator"} and episode.policy_version == -1
    trained = read_episode(tmp_path / "inbox" / online(run)[-1]["id"])
    assert set(trained.sources) == {"policy"} and trained.policy_version >= 1
    dt = {
        round(float(b - a)) for a, b in zip(trained.stamps_ns, trained.stamps_ns[1:], strict=False)
    }
    assert dt == {100_000_000}, "lockstep: every step is exactly one period"
    assert not [event for event in run.supervisor.events if "restarted" in event]


@pytest.mark.slow
@pytest.mark.lockstep
def test_another_demonstration_is_recorded_for_one_that_the_trainer_refuses(tmp_path):
    """Else the trainer waits for one that never comes."""
    with Run(tmp_path, "collect.episodes=2", domain=222, trains=False) as run:
        run.wait(lambda: len(run.events("episode")) == 2, 150, "two demonstrations")
        damaged = tmp_path / "spool/closed" / run.events("episode")[0]["id"]
        [recording] = damaged.glob("*.mcap")
        recording.write_bytes(recording.read_bytes()[:-200])
        seal(damaged)
        run.supervisor.start(trainer_process(tmp_path))
        run.wait(
            lambda: any(event["mode"] == "evaluate" for event in run.events("episode")),
            150,
            "the first policy",
        )
    assert [event["name"] for event in run.events("phase")][:5] == [
        "collect",
        "sft",
        "collect",
        "sft",
        "evaluate_before",
    ]
    assert [event["mode"] for event in run.events("episode")][:4] == ["demonstration"] * 3 + [
        "evaluate"
    ]
    seeds = [event["seed"] for event in run.events("episode")][:3]
    assert len(set(seeds)) == 3 and (tmp_path / "refused" / damaged.name).exists()
    assert "the trainer refused 1 episodes" in run.events("warning")[0]["detail"]


def test_the_same_station_runs_in_real_time_with_cameras(tmp_path):
    """Real time is what a robot has: fixed-rate timers, images that come when they come, a policy
    from pixels.
    """
    with Run(
        tmp_path,
        "station.task=peg_insertion",
        "station.lockstep=false",
        "station.observe_cameras=[front, wrist]",
        "station.image_size=[32, 32]",
        "collect.episodes=1",
        "sft.steps=20",
        "online.max_env_steps=60",
        "online.min_transitions=10",
        "online.updates_per_step=0.1",
        "online.request_episodes=1",
        "online.synchronous=true",
        "online.publish_every_updates=1",
        "evaluate.episodes=1",
        domain=89,
    ) as run:
        run.finish()
        result = run.events("result")[0]
        trained = [entry for entry in run.events("episode") if entry["mode"] == "train"]
        assert not [
            event for event in run.events("warning") if "learner to catch up" in event["detail"]
        ]
    assert result["env_steps"] >= 60
    versions = [entry["policy_version"] for entry in trained]
    assert len(versions) > 1 and versions == sorted(versions) and versions[-1] > versions[0], (
        "each after what was learned"
    )
    check_nothing_lost(run)
    episode = read_episode(tmp_path / "inbox" / run.events("episode")[0]["id"])
    assert episode.observations["front"].shape[1:] == (32, 32, 3)
    assert episode.success and episode.sources.count("operator") > 0.8 * len(episode), (
        "'' where the arm was held"
    )
    periods = np.diff(np.array(episode.stamps_ns, dtype=np.int64)) / 1e9
    assert np.median(periods) == pytest.approx(0.1, abs=0.02), (
        "fixed rate; single steps may be late on a busy machine"
    )


@pytest.mark.slow
@pytest.mark.lockstep
def test_station_trainer_and_director_are_started_apart_as_on_a_robot(tmp_path):
    """``rlinf train``, ``rlinf up`` and ``rlinf run`` in three terminals, the trainer last."""
    settings = [
        "--set",
        f"bridge.port={free_port()}",
        "station.domain_id=79",
        "collect.episodes=2",
        "sft.steps=50",
        "online.max_env_steps=120",
        "evaluate.episodes=2",
        "evaluate.filmed_episodes=0",
    ]
    logs = {}

    def terminal(name, *arguments):
        logs[name] = tmp_path / f"{name}.txt"
        with open(logs[name], "w") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "rlinf_core.cli.main",
                    name,
                    "demo_tiny",
                    *settings,
                    *arguments,
                ],
                stdout=log,
                stderr=log,
            )

    station = terminal("up", "--out", str(tmp_path / "run"))
    director = terminal("run", "--quiet", "--out", str(tmp_path / "run"))
    trainer = terminal("train", "--out", str(tmp_path / "trainer"))
    try:
        assert director.wait(280) == 0, [log.read_text()[-1500:] for log in logs.values()]
    finally:
        for process in (director, station, trainer):
            process.terminate()
        ended = [process.wait(30) for process in (station, trainer)]
    assert ended == [0, 0], "asked to end, both end in order"
    assert json.loads((tmp_path / "run/report.json").read_text())["eval_episodes"] == 2
    assert "is up: sim_bridge, interlock" in logs["up"].read_text()
