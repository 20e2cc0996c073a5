"""Start a lockstep station many times with one seed, and compare the recordings bit by bit.

    python benchmarks/lockstep_starts.py --starts 50 --busy 1 --json
    benchmarks/results/lockstep_starts.json

Each start is a new station: simulator, interlock, environment, policy, scripted operator and
recorder begin at the same time. The goal is sent after the policy's first status, as soon as the
server of `run_episodes` is ready. The station plays two episodes of the policy and two
demonstrations. The figures count starts with a lost action, starts without a time step for a guard
period of the interlock, starts with messages that the recorder missed, and different recordings.

All messages from the first time step to the last are compared, topic by topic: log times and
contents. docs/howto/data.md names what may differ between two equal runs; it is left out. The
benchmark does not cover real time, in which runs are never equal.
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
# Fields that name a run, or count from before the episode; they are not compared.
RUN_FIELDS = ("episode_id", "session", "tick")
RUN_TOPICS = ("/safety", "/robot_description")  # published between episodes, too; not compared
Messages = dict[str, list[tuple[int, str]]]  # by topic: log time and hash of each message


def write_policy(path: Path) -> Path:
    """Write a policy with random weights of one seed; it plays four actions of each chunk."""
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
    """Start the station in a peer's domain and play its episodes.

    Returns:
        Folders of the recordings, and the times between messages within an episode [s].
    """
    from rclpy.action import ActionClient
    from rlinf_msgs.action import RunEpisodes
    from rlinf_msgs.msg import EpisodeEvent, PolicyStatus, TimeStep

    from rlinf_ros.qos import lossless_profile
    from tests.ros.stand_ins import listen, start

    statuses, message_times = listen(peer, PolicyStatus, "policy/status"), list[tuple[str, float]]()

    def note(message: Any) -> None:
        message_times.append((message.episode_id, time.monotonic()))

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
    pairs = zip(message_times, message_times[1:], strict=False)
    return folders, [then - before for (one, before), (other, then) in pairs if one == other]


def message_hashes(folder: Path) -> Messages:
    """Return log time and hash of the messages from the first time step to the last."""
    from rlinf_core.episodes.messages import typestore
    from rlinf_core.episodes.raw_messages import read_messages

    messages = list(read_messages(folder))
    steps = [message.at_ns for message in messages if message.topic.endswith("/timestep")]
    by_topic: Messages = {}
    for message in messages:
        if steps[0] <= message.at_ns <= steps[-1] and not message.topic.endswith(RUN_TOPICS):
            content: Any = typestore().deserialize_cdr(bytes(message.data), message.kind)
            for name in RUN_FIELDS:
                if hasattr(content, name):
                    object.__setattr__(content, name, type(getattr(content, name))())
            raw = bytes(typestore().serialize_cdr(content, message.kind))
            by_topic.setdefault(message.topic, []).append(
                (message.at_ns, hashlib.sha1(raw).hexdigest())
            )
    return by_topic


def count_lost(folder: Path) -> int:
    """Return the number of time steps in which no action was applied."""
    from rlinf_core.episodes import read_episode

    return sum(source == "" for source in read_episode(folder).sources)


def run_start(folder: Path, domain: int, policy: Path) -> dict[str, Any]:
    """Start a station once; return the counts of faults and the contents of its recordings."""
    from rlinf_core.reports.recordings import missed_images
    from tests.ros.conftest import peer_in

    folder.mkdir()
    with peer_in(folder, domain) as peer:
        recordings, pauses = play(peer, policy)
    return {
        "lost": sum(map(count_lost, recordings)),
        "stalls": sum(pause > STALL_S for pause in pauses),
        "left_out": sum(
            int(count) for recording in recordings for count in missed_images(recording).values()
        ),
        "contents": [message_hashes(recording) for recording in recordings],
    }


def differences(one: list[Messages], other: list[Messages]) -> list[str]:
    """Return the topics whose recordings differ between two starts."""
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
        "--busy", type=int, default=0, help="number of busy processes beside the station"
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
    counts, first = {"lost": 0, "stalls": 0, "left_out": 0, "different": 0}, None
    with figures.folder("rlinf-starts-") as folder, running(hogs):
        policy = write_policy(folder / "policy.safetensors")
        for number in range(arguments.starts):
            run = run_start(folder / str(number), FIRST_DOMAIN + number % DOMAINS, policy)
            first = first or run["contents"]
            different_topics = differences(first, run["contents"])
            for name in ("lost", "stalls", "left_out"):
                counts[name] += run[name] > 0
            counts["different"] += bool(different_topics)
            faults = {name: run[name] for name in ("lost", "stalls", "left_out") if run[name]}
            print(
                f"start {number}: {faults or 'complete'}; {', '.join(different_topics) or 'equal'}",
                flush=True,
            )
            if faults or different_topics:
                folder_copy = Path(tempfile.mkdtemp(prefix="rlinf-start-"))
                shutil.copytree(folder / str(number), folder_copy, dirs_exist_ok=True)
                print(f"files of this start: {folder_copy}", flush=True)
            shutil.rmtree(folder / str(number))
    print(f"{arguments.starts} starts, {arguments.busy} busy processes: {counts}")
    if arguments.json:
        figures.write(arguments.json, {"starts": arguments.starts, "busy": arguments.busy} | counts)


if __name__ == "__main__":
    main()
