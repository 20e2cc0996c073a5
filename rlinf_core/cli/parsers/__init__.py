"""The parser of ``rlinf``: one function for each command, in modules by subject.

The options of a command have the names of its function's arguments. The function's module is
imported when the command runs, so help needs no torch.
"""

from __future__ import annotations

import argparse

from rlinf_core.cli.arguments import Parser, complete_help, show_command
from rlinf_core.cli.examples import OVERVIEW
from rlinf_core.cli.parsers import installation, policies, recordings, stations, training
from rlinf_core.core.paths import VERSION

# in the order of ``rlinf --help``
COMMANDS = (
    installation.catalog,
    installation.new,
    training.demo,
    training.train,
    training.plan,
    training.trace,
    training.sweep,
    training.compare,
    stations.collect,
    stations.up,
    stations.run_phases,
    stations.teleop,
    stations.fake_device,
    stations.replay,
    installation.completion,
    stations.station_commands,
    stations.fleet_commands,
    show_command,
    installation.import_contract,
    installation.import_rlinf,
    stations.view,
    policies.chat,
    recordings.data_commands,
    policies.policy_commands,
    recordings.reward_commands,
    policies.monitor_commands,
    policies.world_commands,
    policies.evaluate,
    policies.duel,
    training.diagnose,
    policies.serve,
    policies.make_tiny_vla,
    policies.vla,
    recordings.find_dynamics,
    stations.drill,
    stations.calibrate,
    stations.first_motion,
    stations.camera,
    installation.check,
    installation.messages,
    installation.explain,
    installation.doctor,
)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        "rlinf",
        description="Train robot policies by reinforcement learning on robots and in simulators, "
        "over ROS 2.",
        epilog=OVERVIEW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rlinf {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add_command in COMMANDS:
        add_command(commands)
    complete_help(parser)
    return parser
