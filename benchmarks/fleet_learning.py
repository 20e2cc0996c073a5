"""Measure how fast a fleet learns: one station and several, with and without waiting.

    python benchmarks/fleet_learning.py --json results.json
    python benchmarks/fleet_learning.py --stations 1 2 --seeds 0 --real-time-factor 1
    python benchmarks/fleet_learning.py --stations 1 --ways "in turns" free --line 8 --set
    "policy.hidden=[512, 512]"

Each run is `rlinf fleet up demo`: simulated stations with all of their processes, one trainer, 20
demonstrations in all, then RLPD. It ends when 90 % of the last 50 training episodes of all stations
together succeeded, or after --minutes. Seconds, episodes and time steps are counted from the first
training episode on.

* "plays on" is the recipe as it is. A station plays its newest policy, and pauses only when the
  trainer is an episode behind. The trainer makes a fixed number of updates for each time step.
* "in turns": after each episode the station waits for the trainer's updates and the new policy
  (online.synchronous).
* "free": neither waits for the other; the trainer makes as many updates as it can.

RLinf-USER's table, of its own robots and models, reports 1.55 times the episodes and 4.6 times the
updates without waiting (SAC on images), and 1.20 and 5.70 (HG-DAgger). If a run that waits spends
the share e of its time on episodes and u on updates (e + u = 1), then without waiting it can have at
most 1/e times the episodes and 1/u times the updates. The inverses of both ratios add up to 1, or to
less if waiting wastes time (0.86 and 1.01 in their table). The benchmark prints this sum by time
steps, because a policy that learns sooner has shorter episodes.

With --line the traffic between stations and trainer passes a line of so many Mbit/s each way: tc's
token buckets on the trainer's port, at an address of its own, because policies on one machine are
otherwise linked, not sent. This needs root and iproute2.

Stations run in lockstep, paced to --real-time-factor simulated seconds a second. Compare the seconds
of an episode to see whether the cores keep up with this number of stations. The benchmark does not
cover stations on machines of their own, nor the time that a person needs to set up a scene.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from bridge_peers import free_port  # noqa: E402

from benchmarks.figures import write  # noqa: E402
from rlinf_core.launch.fleet import FOLDER  # noqa: E402
from rlinf_core.reports.curves import read_events  # noqa: E402

WINDOW, GOOD, DOMAIN = 50, 0.9, 130
LINE_ADDRESS = "10.199.19.1"  # the trainer's address at the other end of the line
WAYS = {
    "plays on": [],
    "in turns": [
        "online.synchronous=true",
        "online.request_episodes=1",
        "online.publish_every_updates=50",
    ],
    "free": [
        "online.updates_per_step=1000",
        "online.max_lag_episodes=1000000",
        "online.publish_every_updates=50",
    ],
}


def training_episodes(run: Path) -> list[dict]:
    """Return the training episodes of all stations in the order of their ends."""
    events = [
        event | {"station": folder.name}
        for folder in (run / FOLDER).glob("*")
        for event in read_events(folder)
    ]
    return sorted(
        (event for event in events if event["event"] == "episode" and event["mode"] == "train"),
        key=lambda event: event["time"],
    )


def is_learned(episodes: list[dict]) -> bool:
    """Return whether the last WINDOW episodes reach the success rate GOOD."""
    last = episodes[-WINDOW:]
    return len(last) == WINDOW and sum(event["success"] for event in last) >= GOOD * WINDOW


def update_count(run: Path) -> int:
    """Return the trainer's number of updates, from its newest policy."""
    policies = sorted((run / "policies").glob("policy-*.safetensors"))
    if not policies:
        return 0
    from rlinf_core.policies.policy_folder import read_info

    return int(read_info(policies[-1])["updates"])


@contextlib.contextmanager
def slow_line(port: int, mbit: float) -> Iterator[None]:
    """Limit the traffic of a port of this machine to ``mbit`` Mbit/s each way; 0 sets no limit."""
    lo, address = ["dev", "lo"], [f"{LINE_ADDRESS}/32", "dev", "lo"]
    commands = [
        ["qdisc", "add", *lo, "root", "handle", "1:", "htb", "default", "1"],
        [
            "class",
            "add",
            *lo,
            "parent",
            "1:",
            "classid",
            "1:1",
            "htb",
            "rate",
            "100gbit",
            "quantum",
            "60000",
        ],
    ]
    for number, match in enumerate(("sport", "dport"), 2):
        commands += [
            [
                "class",
                "add",
                *lo,
                "parent",
                "1:",
                "classid",
                f"1:{number}",
                "htb",
                "rate",
                f"{mbit}mbit",
                "burst",
                "64kb",
                "quantum",
                "60000",
            ],
            [
                "filter",
                "add",
                *lo,
                "parent",
                "1:",
                "protocol",
                "ip",
                "prio",
                "1",
                "u32",
                "match",
                "ip",
                "protocol",
                "6",
                "0xff",
                "match",
                "ip",
                match,
                str(port),
                "0xffff",
                "flowid",
                f"1:{number}",
            ],
        ]
    if not mbit:
        yield
        return
    _shape(commands[0])  # fails if the loopback is shaped already
    try:
        for command in commands[1:]:
            _shape(command)
        subprocess.run(["ip", "address", "replace", *address], check=True)
        yield
    finally:
        for undo in (["tc", "qdisc", "del", *lo, "root"], ["ip", "address", "del", *address]):
            subprocess.run(undo, capture_output=True)


def _shape(command: list[str]) -> None:
    try:
        subprocess.run(["tc", *command], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise SystemExit(
            "--line: expected permission to shape this machine's loopback with tc (root, iproute2), "
            "and a loopback without a shaper (tc qdisc del dev lo root removes one); tc "
            f"{' '.join(command)}: {reason}"
        ) from error


def run_fleet(
    stations: int, mode: str, seed: int, options: argparse.Namespace, folder: Path
) -> dict[str, float]:
    """Run a fleet until it has learned or the time is over; return its figures."""
    run = folder / f"{stations}_{mode.replace(' ', '_')}_{seed}"
    port = free_port()
    command = [
        ROOT / ".venv/bin/rlinf",
        "fleet",
        "up",
        "demo",
        "--quiet",
        "--out",
        run,
        "--stations",
        str(stations),
        "--set",
        f"seed={seed}",
        f"bridge.port={port}",
        f"station.domain_id={DOMAIN}",
        "evaluate.episodes=1",
        f"station.real_time_factor={options.real_time_factor}",
        "online.stop_at_success=2",
        "online.max_env_steps=100000",
        *options.set,
        *WAYS[mode],
        *([f"bridge.host={LINE_ADDRESS}", "bridge.insecure=true"] if options.line else []),
    ]
    with slow_line(port, options.line), open(folder / f"{run.name}.log", "w") as log:
        child = subprocess.Popen(
            [str(word) for word in command], stdout=log, stderr=log, start_new_session=True
        )
        try:
            ended = _wait_until_learned(run, child, 60.0 * options.minutes)
        finally:
            if child.poll() is None:
                child.terminate()  # a shell's background job has SIGINT ignored
            child.wait(180)  # it ends its stations, then the trainer, each by three signals
    episodes = training_episodes(run)
    if not episodes:
        raise SystemExit(
            "expected training episodes, got none: "
            f"{(folder / f'{run.name}.log').read_text()[-2000:]}"
        )
    seconds = episodes[-1]["time"] - episodes[0]["time"]
    steps_by_station = [
        [event["env_steps"] for event in episodes if event["station"] == name]
        for name in {event["station"] for event in episodes}
    ]
    steps = sum(max(steps_of_station) for steps_of_station in steps_by_station)
    # The time begins at the end of the first episode.
    timed_steps, timed_episodes = steps - episodes[0]["env_steps"], len(episodes) - 1
    return {
        "reached": float(ended),
        "seconds": seconds,
        "episodes": float(len(episodes)),
        "steps": float(steps),
        "updates": float(update_count(run)),
        "seconds_per_episode": seconds * stations / max(1, timed_episodes),
        "seconds_per_step": seconds * stations / max(1, timed_steps),
        "seconds_per_update": seconds / max(1, update_count(run)),
    }


def _wait_until_learned(run: Path, child: subprocess.Popen, limit_s: float) -> bool:
    """Return whether the run learns within the time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if child.poll() is not None:
            log_text = run.with_name(f"{run.name}.log").read_text()[-2000:]
            raise SystemExit(f"rlinf fleet up ended with {child.returncode}:\n{log_text}")
        if is_learned(training_episodes(run)):
            return True
        time.sleep(1.0)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stations", type=int, nargs="+", default=[1, 4])
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=WAYS,
        default=list(WAYS),
        help="modes of one station; several stations always play on",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--real-time-factor", type=float, default=1.0)
    parser.add_argument(
        "--line",
        type=float,
        default=0.0,
        metavar="MBIT/S",
        help="rate of the line between stations and trainer, each way",
    )
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="limit of one run, including its demonstrations"
    )
    parser.add_argument("--set", nargs="+", default=[], help="further settings of the recipe")
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also ends the stations
    flat: dict[str, float] = {
        "real_time_factor": options.real_time_factor,
        "line_mbit": options.line,
        "cores": float(len(os.sched_getaffinity(0))),
    }
    print(
        f"{'stations':>8}{'':>12}{'seed':>5}{'90 %':>6}{'s':>8}{'episodes':>10}{'steps':>8}{'updates':>9}"
        f"{'s/episode':>11}{'s/step':>8}{'s/update':>10}"
    )
    with tempfile.TemporaryDirectory(prefix="rlinf-learning-") as folder:
        for stations in options.stations:
            for mode in options.ways if stations == 1 else ["plays on"]:
                for seed in options.seeds:
                    figures = run_fleet(stations, mode, seed, options, Path(folder))
                    print(
                        f"{stations:>8}{mode:>12}{seed:>5}{'yes' if figures['reached'] else 'no':>6}"
                        f"{figures['seconds']:>8.0f}{figures['episodes']:>10.0f}{figures['steps']:>8.0f}{figures['updates']:>9.0f}"
                        f"{figures['seconds_per_episode']:>11.2f}{figures['seconds_per_step']:>8.4f}"
                        f"{figures['seconds_per_update']:>10.4f}",
                        flush=True,
                    )
                    flat |= {
                        f"{key}_{stations}_{mode.replace(' ', '_')}_seed_{seed}": value
                        for key, value in figures.items()
                    }
                    if options.json:  # now, because a later run may fail
                        write(options.json, flat)
    for key in ("seconds_per_episode", "seconds_per_step", "seconds_per_update"):
        means = {
            mode: [
                value
                for name, value in flat.items()
                if name.startswith(f"{key}_1_{mode.replace(' ', '_')}")
            ]
            for mode in options.ways
        }
        for mode in ("plays on", "free"):
            if means.get(mode) and means.get("in turns"):
                turns, on = (sum(means[name]) / len(means[name]) for name in ("in turns", mode))
                flat[f"{key}_ratio_{mode.replace(' ', '_')}"] = turns / on
                print(
                    f"{key.replace('_', ' ')}: in turns {turns:.4g}, {mode} {on:.4g}: "
                    f"{turns / on:.2f} times"
                )
    if {"seconds_per_step_ratio_free", "seconds_per_update_ratio_free"} <= flat.keys():
        shares = sum(1.0 / flat[f"seconds_per_{unit}_ratio_free"] for unit in ("step", "update"))
        print(
            f"free: the inverses of both ratios add up to {shares:.2f} (1: the best possible "
            "result of not waiting)"
        )
    if options.json:
        write(options.json, flat)


if __name__ == "__main__":
    main()
