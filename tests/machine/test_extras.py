"""A machine has what its work needs: the station's side runs without torch and ray, and what is
missing is named.
"""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rlinf_core import __version__
from rlinf_core.cli import demo, doctor
from rlinf_core.cli.main import main
from rlinf_core.core import extras, paths
from rlinf_core.core.errors import RlinfError
from rlinf_core.core.ros import ros_environment
from rlinf_core.launch.build_messages import repair_exports

ROOT = Path(__file__).resolve().parents[2]
ABSENT = "torch,ray,mujoco,gym_hil,gymnasium,transformers,peft,tensorboard,matplotlib,scipy,imageio"
NODES = [
    f"rlinf_{package}.{name}"
    for package, names in {
        "interlock": ("interlock", "interlock_services"),
        "station": ("environment", "recorder", "uplink", "director", "policy"),
        "operator": ("operator",),
        "tools": ("fault_injector", "drill", "station_client", "node_client"),
        "drivers": (
            "driver",
            "controller",
            "camera",
            "robotiq",
            "gripper_command",
            "franka",
            "universal_robots",
        ),
    }.items()
    for name in names
]
# nodes that need one: what of it, and which
OF_AN_EXTRA = {
    "rlinf_operator.page": ("aiohttp", "page"),
    "rlinf_station.remote_policy": ("websockets", "serving"),
    "rlinf_station.local_policy": ("torch", "policy"),
}
STATION = [
    *NODES,
    "rlinf_operator.page",
    "rlinf_station.remote_policy",
    "rlinf_core.core.ros",
    "rlinf_core.launch.build_messages",
    "rlinf_core.deploy.bridge.client",
    "rlinf_core.episodes.record",
    "rlinf_core.episodes.spool",
    "rlinf_core.interlock",
    "rlinf_core.recipes",
    "rlinf_core.launch.graph",
    "rlinf_core.launch.supervisor",
    "rlinf_core.cli.doctor",
    "rlinf_core.cli.demo",
    "rlinf_core.cli.terminal",
    "rlinf_core.cli.main",
    "rlinf_core.cli.data",
    "rlinf_core.cli.station",
]


def without(*arguments, absent=ABSENT):
    return subprocess.run(
        [sys.executable, ROOT / "tests/machine/without.py", absent, *arguments],
        cwd=ROOT,
        text=True,
        capture_output=True,
        env=ros_environment(170),
        timeout=120,
    )


@pytest.fixture(scope="module")
def imported():
    """Module to what its import said, in one process without torch, ray and what else a station
    needs not.
    """
    return dict(line.split(": ", 1) for line in without("-m", *STATION).stdout.splitlines())


@pytest.mark.parametrize("module", STATION)
def test_the_stations_side_imports_without_torch_and_ray(module, imported):
    assert imported[module] == "imported"


def test_with_the_base_alone_only_nodes_of_an_extra_lack_anything():
    """Drivers, cameras and grippers ask for their extras when they open a device."""
    brought = (
        "aiohttp,websockets,msgpack,prometheus_client,pymodbus,serial,pyrealsense2,dynamixel_sdk"
    )
    lines = without("-m", *NODES, *OF_AN_EXTRA, absent=f"{ABSENT},{brought}").stdout.splitlines()
    assert lines == [f"{node}: imported" for node in NODES] + [
        f"{node}: ModuleNotFoundError(\"No module named '{package}'\")"
        for node, (package, _) in OF_AN_EXTRA.items()
    ]
    assert all(extras.extra_of(package) == extra for package, extra in OF_AN_EXTRA.values())


def test_the_finder_of_these_tests_does_take_packages_away():
    assert (
        without("-m", "torch").stdout == "torch: ModuleNotFoundError(\"No module named 'torch'\")\n"
    )


@pytest.mark.parametrize("command", [[], ["up"], ["doctor"], ["messages"], ["train"]])
def test_help_needs_neither(command):
    result = without(*command, "--help")
    assert result.returncode == 0 and "usage: rlinf" in result.stdout, result.stderr


def test_the_doctor_examines_such_a_machine():
    process = without("doctor")
    assert "not tried: no torch" in process.stdout and "bridge port" in process.stdout, (
        process.stderr
    )
    assert "Traceback" not in process.stderr


def test_a_recipe_is_checked_and_a_stations_processes_are_listed_without_them():
    process = without("up", "demo", "--set", "station.robot=frank_sim")
    assert process.returncode == 2 and "did you mean 'franka_sim'" in process.stderr, process.stderr
    code = (
        "import sys; from pathlib import Path; from rlinf_core.recipes import load_recipe\n"
        "from rlinf_core.launch.graph import station_processes as processes\n"
        "print(len(processes(load_recipe('demo'), Path('/tmp'))), 'torch' in sys.modules, 'ray' in "
        "sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, timeout=90
    )
    assert process.stdout == "7 False False\n", process.stderr


def test_a_command_whose_packages_are_missing_says_which_extra_brings_them():
    process = without("train", "sim_sac")
    assert process.returncode == 1 and "Traceback" not in process.stderr
    assert (
        "expected the package 'torch', which is not installed. It comes with the extra 'policy'"
        in process.stderr
    )


@pytest.fixture
def station_pc(monkeypatch):
    """An environment in which only the base is installed, of the distribution as pyproject.toml
    describes it.
    """
    listed = [  # as a built wheel's metadata has it
        "numpy>=1.26",
        "rich",
        "websockets>=15; extra == 'serving'",
        "torch>=2.5; extra == 'policy'",
        "rlinf[serving]; extra == 'policy'",
        "rlinf[policy]; extra == 'trainer'",
        "ray>=2.40; extra == 'trainer'",
        "transformers>=5; python_version >= '3.11' and extra == 'vla'",
        "old; python_version < '3' and extra == 'vla'",
    ]
    versions = {"numpy": "1.26.4", "rich": "14.0", "websockets": "16.0"}
    monkeypatch.setattr(extras.metadata, "requires", lambda name: listed)

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(extras.metadata, "version", version)
    return versions


def test_what_an_extra_lacks_is_named_with_whose_work_needs_it(station_pc):
    assert extras.missing() == []
    assert extras.missing("policy") == ["torch>=2.5"] and extras.missing("trainer") == [
        "ray>=2.40",
        "torch>=2.5",
    ]
    finding = doctor._extra("trainer")()
    assert finding.result == "lacks ray>=2.40, torch>=2.5" and not finding.needed
    assert (
        "rlinf train" in finding.fix
        and ".venv/bin/python scripts/install.py trainer" in finding.fix
    )
    station_pc |= {"torch": "2.13.0+cpu", "ray": "2.60.0"}
    assert extras.missing("trainer") == [] and doctor._extra("trainer")().fix == ""


def test_a_version_that_does_not_fit_is_as_good_as_none(station_pc):
    station_pc |= {"numpy": "1.25.0"}
    assert extras.missing() == ["numpy>=1.26"] and doctor._packages().needed


def test_markers_of_other_pythons_ask_for_nothing(station_pc):
    assert [requirement.name for requirement in extras.requirements("vla")] == (
        ["transformers"] if sys.version_info >= (3, 11) else []
    )


def test_what_cannot_do_without_an_extra_refuses_before_it_starts(station_pc):
    with pytest.raises(
        RlinfError,
        match=r"rlinf up: expected the extra 'policy', which lacks torch>=2.5 here. Run: .venv",
    ):
        extras.require("policy", "rlinf up")


@pytest.mark.parametrize(
    "options, lacks",
    [
        ([], "backend local: expected the extra 'policy', which lacks torch>=2.5"),
        (["--set", "station.policy={backend: remote, address: 'ws://trainer:8000'}"], "it goes on"),
        (["--episodes", "3"], "it goes on"),
    ],
)
def test_a_station_needs_torch_only_where_it_computes_a_policy(
    options, lacks, station_pc, monkeypatch, capsys, tmp_path
):
    def check(*_):
        raise RlinfError("it goes on")

    monkeypatch.setattr(demo, "check_station", check)
    assert main(["up", "demo", "--out", str(tmp_path), *options]) == 1
    assert lacks in capsys.readouterr().err
    del station_pc["websockets"]
    if "--set" in options:
        assert main(["up", "demo", "--out", str(tmp_path), *options]) == 1
        assert (
            "backend remote: expected the extra 'serving', which lacks websockets>=15"
            in capsys.readouterr().err
        )


def test_each_module_is_asked_of_the_first_extra_that_brings_it(station_pc):
    assert (extras.extra_of("torch.nn"), extras.extra_of("ray"), extras.extra_of("nothing")) == (
        "policy",
        "trainer",
        None,
    )


def test_every_extra_is_explained():
    listed = (
        (ROOT / "pyproject.toml")
        .read_text()
        .partition("[project.optional-dependencies]\n")[2]
        .partition("\n[")[0]
    )
    assert set(re.findall(r"^([\w-]+) = ", listed, re.M)) - {"simulators"} == extras.PURPOSE.keys()


def test_the_table_shows_the_command_as_it_is_typed(station_pc, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "CHECKS", (doctor._extra("policy"),))
    assert main(["doctor"]) == 0
    assert "scripts/install.py policy" in capsys.readouterr().out


def test_what_to_run_is_no_other_project_of_that_name(station_pc, monkeypatch):
    """An index has another rlinf: where there is no clone, it is the wheel that brings an extra."""
    assert extras.how_to_get() == ".venv/bin/python scripts/install.py"
    monkeypatch.setattr(extras, "in_source_tree", lambda: False)
    assert extras.how_to_get("ros") == f"pip install './rlinf-{__version__}-py3-none-any.whl[ros]'"
    assert extras.how_to_get() == f"pip install ./rlinf-{__version__}-py3-none-any.whl"


def test_doctor_runs_where_rlinf_is_only_found_on_the_path(monkeypatch, capsys):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras.metadata, "requires", requires)
    monkeypatch.setattr(doctor, "CHECKS", (doctor._packages, doctor._extra("ros")))
    assert main(["doctor"]) == 1
    assert "found on the path, not installed" in " ".join(capsys.readouterr().out.split())


def test_another_python_is_given_our_packages_alone(tmp_path, monkeypatch):
    """A wheel lies beside everything else that is installed; a simulator's own environment must not
    see that.
    """
    for name in ("rlinf_core", "sim_bridges", "numpy"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(paths, "SOURCE", tmp_path)
    paths.bundled_packages.cache_clear()
    try:
        assert sorted(path.name for path in paths.bundled_packages().iterdir()) == [
            "rlinf_core",
            "sim_bridges",
        ]
    finally:
        paths.bundled_packages.cache_clear()


def test_the_ros_wheels_are_repaired_here_and_not_in_what_shares_their_files(tmp_path):
    """uv links files of its cache into every environment."""
    cached, folder = tmp_path / "cached", tmp_path / "venv/share/std_msgs/cmake"
    text = (
        "INTERFACE_INCLUDE_DIRECTORIES "
        '"{};${{_IMPORT_PREFIX}}/include"\nINTERFACE_INCLUDE_DIRECTORIES "{}"\n'
    )
    theirs = "/opt/python/cp312-cp312/include/python3.12;/opt/python/numpy/include"
    cached.write_text(text.format("/else", theirs))
    folder.mkdir(parents=True)
    (folder / "std_msgsExport.cmake").hardlink_to(cached)
    repair_exports(tmp_path / "venv", "/usr/include/python3.12;/numpy")
    repaired = (folder / "std_msgsExport.cmake").read_text()
    assert repaired == text.format("/else", "/usr/include/python3.12;/numpy")
    assert cached.read_text() == text.format("/else", theirs)
    assert [path.name for path in folder.iterdir()] == ["std_msgsExport.cmake"]
