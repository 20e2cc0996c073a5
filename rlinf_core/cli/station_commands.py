"""``rlinf status``, ``arm``, ``fault``, ``param`` and others: what a person asks of a running station."""

from __future__ import annotations

import argparse

from rlinf_core.cli.arguments import SET, STATIONS_RECIPE, Commands, at_least, command


def station_commands(commands: Commands) -> None:
    """What a person asks of a running station."""
    def of(parent: Commands, name: str, text: str, more: str, run: str = "visit", **words: str) -> argparse.ArgumentParser:
        parser = command(parent, name, f"cli.station:{run}", text, f"{text[0].upper()}{text[1:]}. {more}")
        for word, meaning in words.items():
            parser.add_argument(word, help=meaning)
        parser.add_argument("name", **STATIONS_RECIPE)
        parser.add_argument("--set", **SET,
                            help="as given to the station, e.g. station.name=station_b station.domain_id=43")
        parser.add_argument("--timeout", dest="timeout_s", type=at_least(0, float), default=5.0, metavar="SECONDS",
                            help="how long to look for the station (default: 5)")
        parser.set_defaults(what=name)
        return parser

    of(commands, "status", "say how a running station is", "What its interlock does and why, what it waits for, which "
            "episode is played, which policy plays, whether the trainer is connected, and which nodes are alive. It only "
            "listens. Exit code 1 where there is no such station.")
    of(commands, "arm", "arm a running station's interlock", "A real arm is armed by a person, at a terminal.")
    of(commands, "disarm", "disarm it: the arm brakes, and stands until it is armed again", "")
    fault = commands.add_parser("fault", help="reset a fault of a running station's interlock, by its name")
    reset = of(fault.add_subparsers(required=True, metavar="COMMAND"), "reset", "reset a fault by its name", (
        "Find out why it came first; without --cause, the one that stands is named. A reset is refused, with the reason, "
        "while its cause has not gone or the enable is not held. It moves nothing: arm afterwards."))
    reset.add_argument("--cause", default="", help="the fault's name, as `rlinf status` shows it")
    of(commands, "instruct", "ask its policy for something else, in words", (
        "From the next time step on, also within an episode: what is left of a chunk is not played. It holds until other "
        "words are said; with '' what the scene or the task says holds again. Each time step that is recorded says it."),
       words="what is asked for, e.g. 'go to the red mark'; '' for what scene or task say")
    gripper = commands.add_parser("gripper", help="what a person has a running station's gripper do")
    of(gripper.add_subparsers(required=True, metavar="COMMAND"), "activate", "activate its gripper", (
        "Of a Robotiq, after power-up and to clear its faults: its fingers open and close once, so keep clear of them."))
    node = {"run": "of_node", "node": "as `rlinf status` names it, e.g. environment, left/interlock, camera/wrist/camera"}
    which = {"parameter": "its name, as `rlinf param list` shows it"}
    parameters = commands.add_parser("param", help="the parameters of a running station's nodes").add_subparsers(
        required=True, metavar="COMMAND")
    of(parameters, "list", "list a node's parameters", "What each is, what it may be, whether it may change while the node "
       "runs, and what it means.", **node)
    of(parameters, "get", "print a parameter of a node", "", **node, **which)
    of(parameters, "set", "set a parameter of a node that runs", (
        "Most are fixed when the node starts. What may change: an interlock's limits, what a twin is told, and what the "
        "policy is asked for. E.g. `rlinf param set twin inject user_stop`, `rlinf param set interlock limits.speed 0.1`."),
       **node, **which, value="of the type that it has; '' for an empty string, [1, 2] for a list")
    of(commands, "lifecycle", "take a running interlock through a transition of its life cycle", (
        "shutdown: it brakes, disarms, and then ends. deactivate and activate: only while DISARMED and at rest."),
       **node, value="shutdown, deactivate, activate")
