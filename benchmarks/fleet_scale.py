"""Measure how the episodes per hour grow with 1, 2, 4 and 8 stations and one trainer on this machine.

    python benchmarks/fleet_scale.py --json results.json
    python benchmarks/fleet_scale.py --real-time-factor 0.25     # each station needs a quarter of the processor
    python benchmarks/fleet_scale.py --stations 1 2 --episodes 3

`rlinf fleet up` starts each station with all of the demo's processes: simulator, interlock,
environment, policy, operator, recorder, uplink, director. The scripted operator demonstrates in
real time; with --real-time-factor in lockstep, paced to so many simulated seconds a second. All
stations play the same scenes. The trainer is `rlinf train`. It takes in the episodes and waits for
more demonstrations than will come, so it does not learn and leaves the processor to the stations.

An episode counts when it is on the trainer's disk and in its journal. The time of a station runs
from its first episode after the start of the count to --episodes later, by the moments in which the
station closed them. So the wait for the uplink, which has the lowest priority, changes no rate;
"lag" is the longest such wait. A fleet's rate is the sum of its stations' rates, and "efficiency"
compares it with the smallest fleet's rate times the number of stations. "cores" is the processor
time of trainer and stations, "trainer" that of the trainer alone, "busy" that of the whole machine.
Near 100 % the cores are full, and more stations are slower. The benchmark does not cover stations
on machines of their own, which share only the trainer and its line (benchmarks/bridge.py
--stations 200).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from bridge_peers import free_port  # noqa: E402

from benchmarks.figures import write  # noqa: E402
from rlinf_core.cli.fleet_up import LOST, Station  # noqa: E402
from rlinf_core.episodes.journal import ARRIVED  # noqa: E402
from rlinf_core.launch.fleet import Member, members  # noqa: E402
from rlinf_core.launch.graph import trainer_process  # noqa: E402
from rlinf_core.launch.supervisor import Supervisor  # noqa: E402
from rlinf_core.recipes import recipe_yaml  # noqa: E402

DOMAIN, FULL, ENDLESS = 120, 0.9, 100_000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def arrivals(run_dir: Path, folders: dict[str, Path]) -> dict[str, list[tuple[float, float]]]:
    """Return when each station closed its arrived episodes, and how long they waited [s]."""
    by_station, journal = defaultdict(list), run_dir / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else ()
    for row in map(json.loads, lines):
        if row["status"] == ARRIVED:
            closed = _closed_at(folders[row["station"]] / "spool", row["id"])
            by_station[row["station"]].append((closed, row["time"] - closed))
    return {station: sorted(times) for station, times in by_station.items()}


def _closed_at(spool: Path, episode_id: str) -> float:
    """Return when an episode was closed: the time of the last file in its folder."""
    for place in ("sent", "closed", "sent"):  # the uplink moves it in parallel
        with contextlib.suppress(FileNotFoundError):
            return (spool / place / episode_id).stat().st_mtime
    raise SystemExit(f"{spool}: expected the episode {episode_id}, which has arrived")


def rate(times: list[float]) -> float:
    """Return episodes per hour from their times [s]; 0 for fewer than two."""
    return 3600.0 * (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0


def used_s(supervisors: list[Supervisor]) -> float:
    """Return the processor time of all processes of the supervisors and of their ended children."""
    total = 0
    for child in (child for supervisor in supervisors for child in supervisor.children.values()):
        fields = Path(f"/proc/{child.popen.pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / TICKS_PER_S


def machine_s() -> tuple[float, float]:
    """Return the processor time of this machine: busy, and in total."""
    user, nice, system, idle, wait, *more = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    )
    busy = user + nice + system + sum(more)
    return busy / TICKS_PER_S, (busy + idle + wait) / TICKS_PER_S


def run_fleet(
    run_dir: Path, count: int, episodes: int, overrides: list[str], limit_s: float
) -> dict[str, float]:
    """Run some stations from their start to the last counted episode; return the figures."""
    recipe, fleet_members = members(
        "demo",
        [
            f"collect.episodes={ENDLESS}",
            f"bridge.port={free_port()}",
            f"station.domain_id={DOMAIN}",
            *overrides,
        ],
        [str(count)],
        run_dir,
    )
    run_dir.mkdir(parents=True)
    (run_dir / "recipe.yaml").write_text(recipe_yaml(recipe))
    same = [Member(member.recipe.but(seed=recipe.seed), member.folder) for member in fleet_members]
    with Supervisor(run_dir, recipe.station.domain) as trainer:
        trainer.start(trainer_process(run_dir))
        stations = [Station(member, False, print) for member in same]
        try:
            for station in stations:
                station.start()
            return _count_episodes(run_dir, trainer, stations, episodes, limit_s)
        finally:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(lambda station: station.supervisor.stop(), stations))


def _count_episodes(
    run_dir: Path, trainer: Supervisor, stations: list[Station], episodes: int, limit_s: float
) -> dict[str, float]:
    supervisors, began = [trainer, *(station.supervisor for station in stations)], time.monotonic()
    counted_from = 0.0
    before = (0.0,) * 4
    folders = {station.member.name: station.member.folder for station in stations}
    counted: dict[str, list[tuple[float, float]]] = {}
    while time.monotonic() < began + limit_s and (
        not counted_from or any(len(times) <= episodes for times in counted.values())
    ):
        time.sleep(0.2)
        for station in stations:
            station.poll()
            if station.state == LOST:
                raise SystemExit(station.progress_text)
        if events := trainer.poll():
            raise SystemExit(str(events))
        by_station = arrivals(run_dir, folders)
        if not counted_from and len(by_station) == len(stations):
            counted_from, before = (
                time.time(),
                (used_s(supervisors), used_s([trainer]), *machine_s()),
            )
        counted = {
            name: [at for at in times if at[0] > counted_from][: episodes + 1]
            for name, times in by_station.items()
        }
    if not counted_from:
        raise SystemExit(
            f"expected an episode of each of {len(stations)} stations within {limit_s:.0f} s, got "
            f"episodes of {', '.join(counted) or 'none'}. Choose fewer stations or a larger "
            "--limit-s"
        )
    now, seconds = (
        (used_s(supervisors), used_s([trainer]), *machine_s()),
        time.time() - counted_from,
    )
    used, trainer_s, busy, machine_total = (
        after - then for after, then in zip(now, before, strict=True)
    )
    return {
        "episodes_per_hour": sum(rate([at for at, _ in times]) for times in counted.values()),
        "lag_s": max((lag for times in counted.values() for _, lag in times), default=0.0),
        "cores": used / seconds,
        "trainer_cores": trainer_s / seconds,
        "busy": busy / machine_total,
        "counted": float(sum(max(0, len(times) - 1) for times in counted.values())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stations", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of stations"
    )
    parser.add_argument("--episodes", type=int, default=5, help="timed episodes of each station")
    parser.add_argument(
        "--real-time-factor",
        type=float,
        default=0.0,
        help="simulated seconds a second, in lockstep "
        "(default: real time, each process by its own clock)",
    )
    parser.add_argument(
        "--limit-s", type=float, default=200.0, help="time limit of each fleet, including its start"
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    options = parser.parse_args()
    factor = options.real_time_factor
    overrides = [f"station.real_time_factor={factor}"] if factor else ["station.lockstep=false"]
    flat: dict[str, float] = {
        "cores_there": float(len(os.sched_getaffinity(0))),
        "real_time_factor": factor,
    }
    print(
        f"{'stations':>8}{'episodes/h':>12}{'efficiency':>12}{'lag':>8}{'cores':>8}{'trainer':>9}{'busy':>7}"
        f"{'counted':>9}"
    )
    for count in sorted(options.stations):
        with tempfile.TemporaryDirectory(prefix="rlinf-scale-") as folder:
            figures = run_fleet(
                Path(folder) / "run", count, options.episodes, overrides, options.limit_s
            )
        if not figures["episodes_per_hour"]:
            raise SystemExit(
                f"{count} stations: expected at least two episodes of a station, got "
                f"{figures['counted']:.0f} within {options.limit_s:.0f} s. Choose a larger "
                "--limit-s or a smaller --real-time-factor"
            )
        flat |= {f"{name}_{count}": value for name, value in figures.items()}
        least = min(options.stations)
        if options.json:  # now, because a larger fleet may fail
            write(options.json, flat)
        efficiency = (
            figures["episodes_per_hour"] / count / (flat[f"episodes_per_hour_{least}"] / least)
        )
        flat[f"efficiency_{count}"] = efficiency
        full = "   the cores are full" if figures["busy"] > FULL else ""
        print(
            f"{count:>8}{figures['episodes_per_hour']:>12.0f}{efficiency:>12.1%}{figures['lag_s']:>6.1f} s"
            f"{figures['cores']:>8.2f}{figures['trainer_cores']:>9.2f}{figures['busy']:>7.0%}"
            f"{figures['counted']:>9.0f}{full}",
            flush=True,
        )
    if options.json:
        write(options.json, flat)


if __name__ == "__main__":
    main()
