"""Starts a lockstep station again and again with one seed, and compares the recordings to the bit.

    python benchmarks/lockstep_starts.py --starts 50 --busy 1 --json
    benchmarks/results/lockstep_starts.json

Each start is a station of its own: simulator, interlock, environment, policy, scripted operator and
recorder, which begin at the same time. The goal is sent once the policy's status and the server of
`run_episodes` are there. Two episodes of the policy and two demonstrations are played. Counted are
starts in which an action was lost, starts in which no time step came for a guard period of the
interlock, messages that the recorder left out, and different recordings.

Compared are all messages from the first time step to the last, topic by topic: log times and
contents. Left out is what docs/howto/data.md says of two equal runs. It does not cover real time,
where runs are never equal.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import figures  # noqa: E402
from benchmarks.interlock import burn, running  # noqa: E402

FIRST_DOMAIN, DOMAINS = 180, 20
SEED, EPISODES = 1_000_000, 2
STALL_S = 0.9  # the interlock's guard is 1 s
MODES = ("evaluate", "demonstration")
STATION = ("station.operator.kind=scripted", "station.task=reach")
NODES = ("sim_bridge", "interlock", "environment", "operator", "recorder", "policy")
# fields that name a run, or count what was before the episode
RUN = (
    "episode_id",
    "session",
    "tick",
)
OF_A_RUN = ("/safety", "/robot_description")  # topics that go on between episodes
Messages = dict[str, list[tuple[int, str]]]  # by topic: log time and contents of each


def write_policy(path: Path) -> Path:
    """Random weights of one seed; a chunk of eight actions, of which four are played."""
    import torch

    from rlinf_core.policies import make_policy
    from rlinf_core.policies.serialization import save_policy
    from rlinf_core.policies.small import tanh_gaussian
    from rlinf_core.recipes import load_recipe, station_task

    torch.manual_seed(0)
    spec = station_task(load_recipe("demo", list(STATION))).spec
    config = tanh_gaussian.Config(hidden=(32,), horizon=8, n_action_steps=4)
    return save_policy(make_policy(spec, config).eval(), path)


def play(peer: Any, policy: Path, modes: tuple[str, ...] = MODES) -> tuple[list[Path], list[float]]:
    """The station in a peer's domain, started: the recordings of its episodes, and the pauses
    within them [s].
    """
    from rclpy.action import ActionClient
    from rlinf_msgs.action import RunEpisodes
    from rlinf_msgs.msg import EpisodeEvent, PolicyStatus, TimeStep

    from rlinf_ros.qos import lossless_profile
    from tests.ros.stand import listen, start

    statuses, moments = listen(peer, PolicyStatus, "policy/status"), list[tuple[str, float]]()

    def note(message: Any) -> None:
        moments.append((message.episode_id, time.monotonic()))

    peer.node.create_subscription(TimeStep, "timestep", note, lossless_profile("timestep"))
    peer.node.create_subscription(EpisodeEvent, "episode", note, lossless_profile("episode"))
    for name in NODES:
        start(
            peer,
            name,
            *STATION,
            **{"policy": {"policy_file": str(policy)}, "interlock": {"lockstep_guard_s": 1.0}}.get(
                name, {}
            ),
        )
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    peer.spin(lambda: statuses and runner.server_is_ready(), what="the station")
    folders = []
    for mode in modes:
        sent = runner.send_goal_async(RunEpisodes.Goal(count=EPISODES, mode=mode, first_seed=SEED))
        peer.spin(sent.done, what="the goal")
        answer = sent.result().get_result_async()
        peer.spin(answer.done, what="the episodes")
        result = answer.result().result
        if not result.success:
            raise SystemExit(f"{mode} episodes: {result.message}")
        folders += [peer.supervisor.run_dir / "spool/closed" / name for name in result.episode_ids]
    pairs = zip(moments, moments[1:], strict=False)
    return folders, [then - before for (one, before), (other, then) in pairs if one == other]


def contents(folder: Path) -> Messages:
    """By topic, log time and contents of each message from the first time step to the last."""
    from rlinf_core.episodes.messages import typestore
    from rlinf_core.episodes.read import recorded

    messages = list(recorded(folder))
    steps = [message.at_ns for message in messages if message.topic.endswith("/timestep")]
    by_topic: Messages = {}
    for message in messages:
        if steps[0] <= message.at_ns <= steps[-1] and not message.topic.endswith(OF_A_RUN):
            read: Any = typestore().deserialize_cdr(bytes(message.data), message.kind)
            for name in RUN:
                if hasattr(read, name):
                    object.__setattr__(read, name, type(getattr(read, name))())
            raw = bytes(typestore().serialize_cdr(read, message.kind))
            by_topic.setdefault(message.topic, []).append(
                (message.at_ns, hashlib.sha1(raw).hexdigest())
            )
    return by_topic


def lost(folder: Path) -> int:
    """Time steps in which no action was applied."""
    from rlinf_core.episodes import read_episode

    return sum(source == "" for source in read_episode(folder).sources)


def started(folder: Path, domain: int, policy: Path) -> dict[str, Any]:
    """One start: what was lost, stalled and left out, and the contents of its recordings."""
    from rlinf_core.reports.recordings import missed
    from tests.ros.conftest import peer_in

    folder.mkdir()
    with peer_in(folder, domain) as peer:
        recordings, pauses = play(peer, policy)
    return {
        "lost": sum(map(lost, recordings)),
        "stalls": sum(pause > STALL_S for pause in pauses),
        "left_out": sum(
            int(count) for recording in recordings for count in missed(recording).values()
        ),
        "contents": [contents(recording) for recording in recordings],
    }


def differences(one: list[Messages], other: list[Messages]) -> list[str]:
    """Topics of which two starts have recorded something else."""
    return [
        f"episode {number} {topic}"
        for number, (a, b) in enumerate(zip(one, other, strict=True))
        for topic in sorted(a.keys() | b.keys())
        if a.get(topic) != b.get(topic)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument(
        "--busy", type=int, default=0, help="processes beside it that compute all the time"
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    arguments = parser.parse_args()
    if arguments.starts < 1:
        parser.error(f"--starts: expected at least 1, got {arguments.starts}")
    from rlinf_core.core.ros import ros_environment

    if os.environ.get("ROS_DOMAIN_ID") != str(FIRST_DOMAIN):
        os.execve(sys.executable, [sys.executable, *sys.argv], ros_environment(FIRST_DOMAIN))
    hogs = [
        multiprocessing.get_context("spawn").Process(target=burn, daemon=True)
        for _ in range(arguments.busy)
    ]
    counted, first = {"lost": 0, "stalls": 0, "left_out": 0, "different": 0}, None
    with figures.folder("rlinf-starts-") as folder, running(hogs):
        policy = write_policy(folder / "policy.safetensors")
        for number in range(arguments.starts):
            run = started(folder / str(number), FIRST_DOMAIN + number % DOMAINS, policy)
            first = first or run["contents"]
            unlike = differences(first, run["contents"])
            for name in ("lost", "stalls", "left_out"):
                counted[name] += run[name] > 0
            counted["different"] += bool(unlike)
            faults = {name: run[name] for name in ("lost", "stalls", "left_out") if run[name]}
            print(
                f"start {number}: {faults or 'all there'}; {', '.join(unlike) or 'equal'}",
                flush=True,
            )
            if faults or unlike:
                folder_copy = Path(tempfile.mkdtemp(prefix="rlinf-start-"))
                shutil.copytree(folder / str(number), folder_copy, dirs_exist_ok=True)
                print(f"kept for a closer look: {folder_copy}", flush=True)
            shutil.rmtree(folder / str(number))
    print(f"{arguments.starts} starts, {arguments.busy} busy processes: {counted}")
    if arguments.json:
        figures.write(
            arguments.json, {"starts": arguments.starts, "busy": arguments.busy} | counted
        )


if __name__ == "__main__":
    main()
