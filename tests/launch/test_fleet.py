"""The stations of a fleet: their names, their memory, their bridge, and what each still shows."""

import json
from types import SimpleNamespace

import pytest

from rlinf_core.core.errors import BridgeError, RecipeError
from rlinf_core.data.demonstrations import DemonstrationStats
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.launch import fleet
from rlinf_core.launch.fleet import Member, check_memory, free_mb, members
from rlinf_core.recipes import load_recipe
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("default_port_free")


@pytest.mark.parametrize(
    "texts, names",
    [
        (["1"], ["station_1"]),
        (["3"], ["station_1", "station_2", "station_3"]),
        (["kitchen"], ["kitchen"]),
        (["lab", "hall"], ["lab", "hall"]),
        (["a" * 64], ["a" * 64]),
    ],
)
def test_a_number_names_stations_and_names_are_kept(texts, names):
    assert fleet._names(texts, 40) == names


def test_a_fleet_has_as_many_stations_as_ros_has_domains():
    assert len(fleet._names(["3"], 230)) == 3 and len(fleet._names(["a", "b", "c"], 230)) == 3
    for texts, actual in ((["4"], "4"), (["a", "b", "c", "d"], "4"), (["9" * 5], "99999")):
        with pytest.raises(RecipeError) as error:
            fleet._names(texts, 230)
        assert str(error.value) == (
            "--stations: expected 1 to 3, since each station needs its own ROS_DOMAIN_ID from 230 "
            f"to 232, got {actual}"
        )


@pytest.mark.parametrize("texts", [["a", "b/c"], ["_a"], ["1", "b"], ["a" * 65]])
def test_what_is_no_name_of_a_station_is_refused(texts):
    with pytest.raises(
        RecipeError, match=r"names \(a letter, then up to 63 letters, digits or _\)"
    ):
        fleet._names(texts, 40)


def test_a_refused_name_is_not_printed_at_any_length():
    with pytest.raises(RecipeError) as error:
        fleet._names(["-" + "a" * 500], 40)
    assert str(error.value).endswith(f", got '-{'a' * 199}'")


@pytest.mark.parametrize(
    "free, stations, most",
    [(1800.0, 1, 1), (2899.0, 2, 1), (2900.0, 2, 2), (4000.0, 4, 3), (1799.0, 1, 0), (10.0, 1, 0)],
)
def test_each_station_needs_memory_beside_the_trainer(monkeypatch, free, stations, most):
    monkeypatch.setattr(fleet, "free_mb", lambda: free)
    if stations <= most:
        return check_memory(stations)
    with pytest.raises(RecipeError) as error:
        check_memory(stations)
    assert str(error.value) == (
        f"--stations: expected at most {most}, since {free:.0f} MB of memory are free, the trainer "
        f"takes about 700 and each station 1100; got {stations}. Start fewer, or run some on "
        "another machine (docs/howto/fleet.md)"
    )


@pytest.mark.parametrize(
    "limit, free", [(None, 2048.0), ("max\n", 2048.0), ("1000000000\n", 1000.0), ("9" * 15, 2048.0)]
)
def test_the_free_memory_is_that_of_machine_and_container(monkeypatch, limit, free):
    files = {
        "/proc/meminfo": "MemTotal:  9000000 kB\nMemFree:  1 kB\nMemAvailable: 2000000 kB\n",
        "/sys/fs/cgroup/memory.max": limit,
    }

    def read(name):
        if files[name] is None:
            raise FileNotFoundError(name)
        return files[name]

    monkeypatch.setattr(fleet, "Path", lambda name: SimpleNamespace(read_text=lambda: read(name)))
    assert free_mb() == pytest.approx(free)


@pytest.fixture
def station(tmp_path, monkeypatch):
    """Return a station of a fleet that has recorded so much."""
    member = Member(
        load_recipe("demo", ["station.name=lab", "collect.episodes=5"]),
        tmp_path / "run/stations/lab",
    )
    stats, refused = {"stats": DemonstrationStats()}, []

    def demonstration_stats(folder, recipe, without):
        assert folder == member.folder and recipe is member.recipe
        refused.append(without)
        return stats["stats"]

    monkeypatch.setattr(fleet, "demonstration_stats", demonstration_stats)
    return member, stats, refused


@pytest.mark.parametrize(
    "succeeded, next_seed, lacks, episodes, first_seed",
    [
        (0, None, True, 5, 10000),
        (4, 17, True, 1, 17),
        (5, 17, False, 0, 17),
        (9, 17, False, 0, 17),
    ],
)
def test_a_station_shows_what_its_share_lacks(
    station, tmp_path, succeeded, next_seed, lacks, episodes, first_seed
):
    member, stats, refused = station
    stats["stats"] = DemonstrationStats(succeeded=succeeded, next_seed=next_seed)
    for name in ("lab-1-001", "lab-1-002"):
        (tmp_path / "run/refused" / name).mkdir(parents=True)
    (tmp_path / "run/refused/notes.txt").touch()
    assert member.name == "lab" and member.lacks_demonstrations is lacks
    processes = member.prepare()
    assert refused == [{"lab-1-001", "lab-1-002"}] * 2
    collect = json.loads((member.folder / "plan.json").read_text())["collect"]
    assert (collect["episodes"], collect["share"], collect["first_seed"]) == (
        episodes,
        5,
        first_seed,
    )
    assert (member.folder / "recipe.yaml").exists()
    assert processes[-1].name == "director" and processes[-1].namespace == "/lab"
    assert {node.name for process in processes for node in process.nodes} >= {"interlock", "policy"}


def test_stations_of_a_fleet_differ_in_name_domain_seed_and_bridge(tmp_path):
    port = free_port()
    overrides = [
        f"bridge.port={port}",
        f"bridge.token_file={tmp_path}/token",
        "station.domain_id=216",
        "seed=2147483647",
        "collect.episodes=5",
    ]
    recipe, stations = members("demo", overrides, ["2"], tmp_path / "run")
    assert [member.name for member in stations] == ["station_1", "station_2"]
    assert [member.recipe.station.domain for member in stations] == [216, 217]
    assert [member.recipe.seed for member in stations] == [2147483647, 0], "a seed has 31 bits"
    assert [member.recipe.collect.episodes for member in stations] == [3, 3]
    assert [member.folder for member in stations] == [
        tmp_path / f"run/stations/station_{number}" for number in (1, 2)
    ]
    assert recipe.collect.episodes == 5 and recipe.station.domain == 216
    for member in stations:
        bridge = member.recipe.bridge
        assert (bridge.host, bridge.port) == ("127.0.0.1", port)
        assert bridge.token_file == str(tmp_path / "token")


def test_a_station_calls_the_trainer_by_this_machine_with_its_own_credentials(tmp_path):
    enrolled = Fleet(tmp_path / "fleet")
    enrolled.enroll("lab", tmp_path / "lab")
    bridge = load_recipe(
        "demo",
        [
            "bridge.host=0.0.0.0",
            f"bridge.fleet={tmp_path / 'fleet'}",
            f"bridge.credentials={tmp_path}",
        ],
    ).bridge
    here = fleet._bridge(bridge, "lab", tmp_path / "run")
    assert (here.host, here.credentials) == ("127.0.0.1", str(tmp_path / "lab"))
    assert here.fleet == bridge.fleet and here.token_file == bridge.token_file
    enrolled.revoke("lab")
    with pytest.raises(BridgeError) as error:
        fleet._bridge(bridge, "lab", tmp_path / "run")
    assert str(error.value).startswith(
        f"station 'lab', with {tmp_path / 'lab'}, at the fleet {tmp_path / 'fleet'}: its certif"
    )
    with pytest.raises(RecipeError, match=f"since bridge.fleet is {tmp_path / 'fleet'}, got none"):
        fleet._bridge(bridge.but(credentials=""), "lab", tmp_path / "run")


def test_of_a_trainer_without_a_token_a_station_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "token_of", lambda bridge, run_dir: None)
    bridge = load_recipe("demo").bridge
    assert fleet._bridge(bridge, "lab", tmp_path) == bridge.but(host="127.0.0.1")
