"""``rlinf fleet up``: recipes and folders of a trainer and simulated stations on one machine."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlinf_core.core.connections import connect_address
from rlinf_core.core.errors import BridgeError, RecipeError
from rlinf_core.core.paths import expand_user
from rlinf_core.core.ros import MAX_DOMAIN
from rlinf_core.data.demonstrations import DemonstrationStats, demonstration_stats
from rlinf_core.deploy.bridge.fleet import STATION_NAME, Credentials, Fleet
from rlinf_core.launch.graph import (
    Process,
    compose,
    director_process,
    station_processes,
    write_plan,
)
from rlinf_core.launch.preflight import check_policy_device, check_trainer
from rlinf_core.recipes import Recipe, check_recipe, load_recipe, station_robot
from rlinf_core.recipes.bridge_security import fleet_of, token_of
from rlinf_core.recipes.schema import Bridge
from rlinf_core.recipes.sources import STATIONS, source_of
from rlinf_core.recipes.station import embodiment_recipes
from rlinf_core.robots.operators import SCRIPTED
from rlinf_core.trainer.folder import write_recipe

TRAINER_MB, STATION_MB = 700, 1100  # memory of the demo (docs/howto/fleet.md)
FOLDER, REFUSED = "stations", "refused"  # in the run's folder


@dataclass(frozen=True)
class Member:
    """A station of the fleet.

    Attributes:
        recipe: recipe of this station.
        folder: folder of its spool, policies and logs.
    """

    recipe: Recipe
    folder: Path

    @property
    def name(self) -> str:
        return self.recipe.station.name

    def _demonstrations(self) -> DemonstrationStats:
        """Return its demonstrations, without those that the trainer refused."""
        return demonstration_stats(
            self.folder,
            self.recipe,
            {path.name for path in (self.folder.parent.parent / REFUSED).glob("*/")},
        )

    @property
    def lacks_demonstrations(self) -> bool:
        """Whether demonstrations are missing."""
        return self._demonstrations().succeeded < self.recipe.collect.episodes

    def prepare(self) -> list[Process]:
        """Write recipe and plan, and return the processes, the director last.

        Existing demonstrations count.
        """
        before, episode_count = self._demonstrations(), self.recipe.collect.episodes
        write_recipe(self.recipe, self.folder)
        write_plan(
            self.recipe,
            self.folder,
            episodes=max(0, episode_count - before.succeeded),
            share=episode_count,
            **({} if before.next_seed is None else {"first_seed": before.next_seed}),
        )
        return [
            *compose(self.recipe, station_processes(self.recipe, self.folder)),
            director_process(self.recipe, self.folder),
        ]


def members(
    name: str, overrides: list[str], stations: list[str], run_dir: Path
) -> tuple[Recipe, list[Member]]:
    """Return the trainer's recipe and the stations of a fleet.

    Each station has its own ROS_DOMAIN_ID (counted from the recipe's), its own scenes and its share
    of the demonstrations. Several embodiments take turns.

    Args:
        name: name of the recipe.
        overrides: ``--set`` of the command.
        stations: names of the stations, or one number.
        run_dir: folder of the run.

    Raises:
        RlinfError: the recipe, a name, the memory or the credentials do not fit.
    """
    recipe = load_recipe(name, overrides)
    check_recipe(recipe)
    check_trainer(recipe, run_dir)
    check_policy_device(recipe)
    _check_simulated(recipe, name)
    names = _names(stations, recipe.station.domain)
    check_memory(len(names))
    kinds = [*embodiment_recipes(recipe).values()] or [recipe]
    if len(names) < len(kinds):
        raise RecipeError(
            f"--stations: expected {len(kinds)} or more, at least one per robot of "
            f"{', '.join(recipe.embodiments)}, since training needs demonstrations of all robots, "
            f"got {len(names)}"
        )
    result = []
    for number, station_name in enumerate(names):
        kind = kinds[number % len(kinds)]
        member_count = len(range(number % len(kinds), len(names), len(kinds)))
        share = math.ceil(recipe.collect.episodes / member_count)
        station = kind.station.but(name=station_name, domain_id=recipe.station.domain + number)
        station_recipe = kind.but(
            station=station,
            seed=(recipe.seed + number) % 2**31,
            bridge=_bridge(recipe.bridge, station_name, run_dir),
            collect=recipe.collect.but(episodes=share),
        )
        result.append(Member(station_recipe, run_dir / FOLDER / station_name))
    return recipe, result


def _check_simulated(recipe: Recipe, name: str) -> None:
    """Raise RecipeError unless all stations are simulated and operated by a script."""
    station = recipe.station
    if source_of(recipe) != STATIONS:
        raise RecipeError(
            f"recipe {recipe.name}: expected a recipe that trains on episodes of stations, got one "
            f"that trains on {source_of(recipe)}. Run `rlinf train {name}`"
        )
    kinds = {f"embodiments.{key}": kind for key, kind in embodiment_recipes(recipe).items()} or {
        "station": recipe
    }
    for key, kind in kinds.items():
        if not station_robot(kind).without_hardware:
            raise RecipeError(
                f"{key}.robot: expected a simulated robot, since a fleet starts several, got "
                f"'{kind.station.robot}'. Start each real station by rlinf up on its own PC"
            )
    if station.operator.kind != SCRIPTED:
        raise RecipeError(
            f"station.operator.kind: expected {SCRIPTED} for stations without a person, got "
            f"{station.operator.kind}. Start a station with a person separately by rlinf up"
        )
    if station.web.port:
        raise RecipeError(
            "station.web.port: expected 0, since stations cannot share a port, got "
            f"{station.web.port}. rlinf up --web serves the page of one station"
        )


def _names(texts: list[str], domain: int) -> list[str]:
    """Return the names of the stations; a number gives station_1, station_2, ...

    Raises:
        RecipeError: a name is invalid or occurs twice, or the ROS domains do not suffice.
    """
    number = int(texts[0]) if len(texts) == 1 and texts[0].isdecimal() else len(texts)
    if not 1 <= number <= MAX_DOMAIN + 1 - domain:
        raise RecipeError(
            f"--stations: expected 1 to {MAX_DOMAIN + 1 - domain}, since each station needs its "
            f"own ROS_DOMAIN_ID from {domain} to {MAX_DOMAIN}, got "
            f"{texts[0] if number > len(texts) else number}"
        )
    if len(texts) == 1 and texts[0].isdecimal():
        return [f"station_{index}" for index in range(1, number + 1)]
    if wrong := [name for name in texts if not STATION_NAME.fullmatch(name)]:
        raise RecipeError(
            "--stations: expected a number, or names (a letter, then up to 63 letters, digits or "
            f"_), got '{wrong[0][:200]}'"
        )
    if twice := [name for name, count in Counter(texts).items() if count > 1]:
        raise RecipeError(
            f"--stations: expected different names, got '{twice[0]}' twice. The trainer cannot "
            "distinguish two stations of one name"
        )
    return texts


def _bridge(bridge: Bridge, station: str, run_dir: Path) -> Bridge:
    """Return the bridge settings of a station on this machine, with its token or credentials."""
    here = bridge.but(host=connect_address(bridge.host))
    fleet = fleet_of(bridge)
    if fleet is None:
        token = token_of(bridge, run_dir)
        return here.but(token_file=str(token)) if token else here
    if not bridge.credentials:
        raise RecipeError(
            "bridge.credentials: expected a folder with credentials of each station, since "
            f"bridge.fleet is {fleet}, got none. Run rlinf fleet enroll {station} --out "
            f"credentials/{station} for each station, then set bridge.credentials=credentials"
        )
    folder = expand_user(bridge.credentials, "bridge.credentials").resolve() / station
    if reason := Fleet(fleet).refusal_reason(station, Credentials(folder, station).certificate):
        raise BridgeError(f"station '{station}', with {folder}, at the fleet {fleet}: {reason}")
    return here.but(credentials=str(folder))


def check_memory(stations: int) -> None:
    """Raise RecipeError if the stations need more memory than is free."""
    free = free_mb()
    most = max(0, int((free - TRAINER_MB) // STATION_MB))
    if stations > most:
        raise RecipeError(
            f"--stations: expected at most {most}, since {free:.0f} MB of memory are free, the "
            f"trainer takes about {TRAINER_MB} and each station {STATION_MB}; got {stations}. "
            "Start fewer, or run some on another machine (docs/howto/fleet.md)"
        )


def free_mb() -> float:
    """Return the free memory [MB] of this machine, at most the limit of its container."""
    memory_fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = [float(memory_fields["MemAvailable"].split()[0]) * 1024]
    with suppress(OSError, ValueError):  # no container, or no limit
        free.append(float(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(free) / 1e6
