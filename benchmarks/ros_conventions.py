"""Measure how well the ROS 2 workspace follows ROS's conventions.

    python benchmarks/ros_conventions.py --json results.json

* packages, packages_tested: manifests in ros_ws/src; packages whose tests `colcon test` passes after
  `colcon build`.
* launch_files, launch_files_equal_to_up: files of launch/; those that start, restart and end the
  same processes as the process graph of `rlinf up`.
* nodes, nodes_with_lifecycle, nodes_with_diagnostics: executables of the packages that are nodes;
  those that are managed, or that publish on /diagnostics. An executable with several modules, such
  as `driver`, counts if each of them does. `drill` is a command, not a node.

`launch_files_equal_to_up` needs ROS's launch: a sourced ROS, RLINF_ROS_SETUP, or make ros2. It builds
each description and does not cover the behaviour of the processes: tests/machine/test_launch.py
starts them, test_launch_policy.py there ends them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *map(str, ROOT.glob("ros_ws/src/rlinf_*"))]
WORKSPACE = ROOT / "ros_ws/src"
LAUNCHES = {  # arguments of the launch files that start a station
    "realworld": {"recipe": "franka_twin"},
    "station": {"recipe": "ur5e_twin"},
    "sim": {"recipe": "demo"},
    "collect": {"recipe": "demo", "episodes": "2"},
    "fleet": {"recipe": "demo_tiny", "stations": "2"},
}
COMMANDS, OUR_PREFIXES = ("drill",), ("rlinf_", "sim_bridges.")
# Launch files that include a vendor's launch file; `rlinf up` does not start their processes.
VENDOR_LAUNCHES = ("driver",)
MANAGED = re.compile(r"^class \w+\(.*\b(?:LifecycleNode|Managed)\b.*\):", re.M)
DIAGNOSED = re.compile(r"\bDiagnostics\(|DiagnosticArray")


def packages() -> list[str]:
    """Return the names of the packages of the workspace."""
    return sorted(
        ElementTree.parse(path).getroot().findtext("name", "")
        for path in WORKSPACE.glob("*/package.xml")
    )


def tested_packages(folder: Path) -> list[str]:
    """Return the packages with at least one test whose tests pass in a copy of the workspace."""
    from tests.machine.workspace import built, colcon

    class BasetempFactory:
        @staticmethod
        def getbasetemp() -> Path:
            return folder

    clone = built(BasetempFactory)
    colcon(clone, "test")
    passed = []
    for path in clone.glob("ros_ws/build/*/pytest.xml"):
        suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
        count = {
            key: sum(int(suite.get(key, "0")) for suite in suites)
            for key in ("tests", "failures", "errors")
        }
        if count["tests"] and not count["failures"] + count["errors"]:
            passed.append(path.parent.name)
    return sorted(passed)


def executables() -> dict[str, set[str]]:
    """Return the modules of each node by its executable, from setup.py files and plug-ins."""
    from rlinf_core.launch.graph import HOSTED_EXECUTABLES
    from rlinf_core.robots import drivers, grippers

    modules = {
        name: {module}
        for path in WORKSPACE.glob("*/setup.py")
        for name, module in re.findall(r'"(\w+) = ([\w.]+):main"', path.read_text())
        if name not in COMMANDS
    }
    twins = {
        f"sim_bridges.twins.{path.stem}"
        for path in (ROOT / "sim_bridges/twins").glob("*.py")
        if "def main()" in path.read_text()
    }
    gripper_twins = {module for module in twins if module.rpartition(".")[2] in grippers.grippers()}
    # A recipe selects one of these.
    modules["policy"] = {"rlinf_station.local_policy", "rlinf_station.remote_policy"}
    return modules | {
        "driver": {
            drivers.driver(name).node
            for name in drivers.drivers()
            if getattr(drivers.driver(name), "node", "")
        },
        "gripper": {grippers.gripper(name).node for name in grippers.grippers()},
        "gripper_twin": gripper_twins,
        "twin": twins - gripper_twins,
        "station": set().union(*(modules[name] for name in HOSTED_EXECUTABLES)),
    }


def nodes_with(pattern: re.Pattern) -> list[str]:
    """Return the executables of which each module, or a module that it imports, matches."""
    matching = []
    for name, modules in executables().items():
        try:
            sources = [_sources(importlib.import_module(module)) for module in sorted(modules)]
        except ImportError as error:
            sys.exit(f"ros_conventions: {name}: {error}. Run: make setup")
        if sources and all(
            any(pattern.search(source) for source in module_sources) for module_sources in sources
        ):
            matching.append(name)
    return sorted(matching)


def _sources(module) -> list[str]:
    """Return the sources of a module, of the modules that it imports, and of base classes."""
    imported = re.findall(r"^ *from (rlinf_\w+\.\w+) import", inspect.getsource(module), re.M)
    names = {
        module.__name__,
        *(name for name in imported if name.split(".")[0] == module.__name__.split(".")[0]),
    }
    classes = [
        value
        for name in names
        for _, value in inspect.getmembers(importlib.import_module(name), inspect.isclass)
    ]
    bases = {
        base.__module__
        for value in classes
        for base in value.__mro__
        if base.__module__.startswith(OUR_PREFIXES)
    }
    expected_nodes = {
        name for name in names | bases if not name.startswith(("rlinf_core", "rlinf_ros"))
    }
    return [
        inspect.getsource(importlib.import_module(name))
        for name in sorted(expected_nodes | {module.__name__})
    ]


def launch_files() -> list[str]:
    """Return the names of the launch files that start our processes."""
    names = sorted(
        path.name.removesuffix(".launch.py") for path in (ROOT / "launch").glob("*.launch.py")
    )
    return [name for name in names if name not in VENDOR_LAUNCHES]


def equal_launch_files(setup: str) -> list[str]:
    """Return the launch files that match the process graph; each builds in its own process."""
    equal = []
    for name in launch_files():
        script = f'[ -z "{setup}" ] || . "{setup}"; exec "{sys.executable}" {__file__} --one {name}'
        environment = {
            key: value
            for key, value in os.environ.items()
            if key != "_ROS_WHEELS_BOOTSTRAP_COMPLETE"
        }
        result = subprocess.run(
            ["bash", "-ec", script], text=True, capture_output=True, env=environment
        )
        print(f"{name}: {result.stdout.strip() or result.stderr.strip()[-300:]}")
        if result.returncode == 0:
            equal.append(name)
    return equal


def compare(name: str) -> str:
    """Return the difference of a launch file from the process graph; empty if there is none."""
    import runpy

    from launch.actions import DeclareLaunchArgument, OpaqueFunction
    from launch.utilities import perform_substitutions
    from launch_ros.actions import Node

    from launch import LaunchContext

    context = LaunchContext()
    description = runpy.run_path(str(ROOT / f"launch/{name}.launch.py"))[
        "generate_launch_description"
    ]()
    with tempfile.TemporaryDirectory() as folder:
        arguments = LAUNCHES.get(name, {}) | {"run_dir": f"{folder}/run"}
        for entity in description.entities:
            if isinstance(entity, DeclareLaunchArgument):
                default = perform_substitutions(context, entity.default_value or [])
                context.launch_configurations[entity.name] = arguments.get(entity.name, default)
        actions = [
            action
            for entity in description.entities
            if isinstance(entity, OpaqueFunction)
            for action in entity.execute(context) or []
        ]
        nodes = [action for action in actions if isinstance(action, Node)]
        if name not in LAUNCHES:
            return "" if nodes else "it starts no node"
        return _difference(name, arguments, nodes, Path(folder))


def _difference(name: str, arguments: dict, nodes: list, folder: Path) -> str:
    from station import StationNode, nodes_of

    from rlinf_core.launch.fleet import members

    if name == "fleet":
        _, stations = members(
            arguments["recipe"], [], arguments["stations"].split(), folder / "run"
        )
        expected = [(station.prepare(), station.folder) for station in stations]
    else:
        expected = [(_graph_processes(name, arguments, folder / "up"), folder / "up")]
    expected_nodes = [
        node for processes, run_dir in expected for node in nodes_of(processes, run_dir)
    ]
    launched = [node for node in nodes if isinstance(node, StationNode)]
    if len(launched) != len(nodes):
        return "a node is not a StationNode"
    pairs = list(
        zip(map(_key_properties, expected_nodes), map(_key_properties, launched), strict=False)
    )
    different = [str(pair) for pair in pairs if pair[0] != pair[1]]
    return "; ".join(different) or (
        ""
        if len(expected_nodes) == len(launched)
        else f"{len(launched)} nodes instead of {len(expected_nodes)}"
    )


def _graph_processes(name: str, arguments: dict, run_dir: Path) -> list:
    """Return the processes that `rlinf up`, or `rlinf collect`, starts."""
    from rlinf_core.launch.graph import (
        collect_processes,
        compose,
        load_collect_recipe,
        station_processes,
    )
    from rlinf_core.recipes import load_recipe

    if name == "collect":
        recipe, before = load_collect_recipe(
            arguments["recipe"],
            ["station.operator={kind: keyboard}"],
            run_dir,
            int(arguments["episodes"]),
        )
        return collect_processes(recipe, run_dir, before, terminal=False)
    recipe = load_recipe(arguments["recipe"])
    return compose(recipe, station_processes(recipe, run_dir))


def _key_properties(node) -> tuple:
    """Return a node's process, whether it restarts, and how many nodes end before it."""
    return (_without_folders(asdict(node.process)), node._ExecuteLocal__respawn, len(node.before))


def _without_folders(process: dict) -> dict:
    """Return a process, and those that it hosts, without parameters that hold a run's folder."""
    parameters = {
        key: value
        for key, value in process["parameters"].items()
        if not re.search("/run|/up", str(value))
    }
    return process | {
        "parameters": parameters,
        "nodes": [_without_folders(node) for node in process["nodes"]],
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write one flat object there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sys.path.insert(0, str(ROOT / "launch"))
        difference = compare(options.one)
        print(difference or "equal")
        return bool(difference)
    from rlinf_core.core.ros import ros_environment
    from tests.machine.ros2_there import SETUP

    # The loader reads LD_LIBRARY_PATH at the start of a process, so this one starts again.
    if not importlib.util.find_spec("rlinf_msgs"):
        environment = {
            key: value
            for key, value in ros_environment(77).items()
            if key != "_ROS_WHEELS_BOOTSTRAP_COMPLETE"
        }
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    with tempfile.TemporaryDirectory(prefix="ros-conventions-") as folder:
        figures = {
            "packages": len(packages()),
            "packages_tested": len(tested_packages(Path(folder))),
            "launch_files": len(launch_files()),
            "launch_files_equal_to_up": len(equal_launch_files(SETUP)),
            "nodes": len(executables()),
            "nodes_with_lifecycle": len(nodes_with(MANAGED)),
            "nodes_with_diagnostics": len(nodes_with(DIAGNOSED)),
        }
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
