"""A client of one node of a running station: its parameters and its life cycle.

    rlinf param list | rlinf param get | rlinf param set | rlinf lifecycle

It uses the services that ROS gives every node.
"""

from __future__ import annotations

import argparse
import json
from array import array
from typing import Any

import yaml
from lifecycle_msgs.srv import ChangeState, GetAvailableTransitions
from rcl_interfaces.msg import ParameterDescriptor, ParameterValue
from rcl_interfaces.srv import DescribeParameters, GetParameters, ListParameters, SetParameters
from rclpy.parameter import Parameter, parameter_value_to_python

from rlinf_core.cli.output import print_table
from rlinf_core.config.yaml_source import load_plain
from rlinf_core.core.errors import RlinfError, nearest
from rlinf_ros.parameters import expected
from rlinf_ros.spinning import destroy
from rlinf_ros.station_state import HELPERS, command_context, silence_message
from rlinf_tools.station_client import StationClient

SHOWN = 60  # characters of a value in a list
READS: dict[Parameter.Type, Any] = {
    Parameter.Type.STRING: str,
    Parameter.Type.INTEGER: int,
    Parameter.Type.DOUBLE: float,
}


class NodeClient:
    """Asks one node.

    Args:
        station: the node's station.
        node_name: its name, as ``rlinf status`` shows it, or in full.

    Raises:
        RlinfError: there is no such node.
    """

    def __init__(self, station: StationClient, node_name: str) -> None:
        self.station = station
        self.name = node_name.removeprefix(f"/{station.name}/")
        if not station.within(
            station.patience_s,
            lambda: self.name in station.nodes(),
            f"the node {self.name} of station '{station.name}'",
        ):
            names = [
                name
                for name in station.nodes()
                if not name.startswith("station_client_") and not name.endswith(HELPERS)
            ]
            if not names:
                raise RlinfError(
                    silence_message(station.node, f"node '{node_name}'", station.patience_s)
                )
            raise RlinfError(
                f"expected a node of station '{station.name}', got "
                f"'{node_name}'{nearest(node_name, names)}. Nodes: {', '.join(names)}"
            )

    def call(self, kind: Any, service: str, **request: Any) -> Any:
        """Call a service and return its answer."""
        client = self.station.node.create_client(kind, f"{self.name}/{service}")
        return self.station.call(client, kind.Request(**request))

    def parameters(self) -> dict[str, tuple[ParameterValue, ParameterDescriptor]]:
        """Return value and description of each parameter by its name."""
        names = sorted(self.call(ListParameters, "list_parameters").result.names)
        values = self.call(GetParameters, "get_parameters", names=names).values
        descriptors = self.call(DescribeParameters, "describe_parameters", names=names).descriptors
        return dict(zip(names, zip(values, descriptors, strict=True), strict=True))

    def parameter(self, name: str) -> tuple[ParameterValue, ParameterDescriptor]:
        """Return a parameter's value and description; an RlinfError suggests the nearest name."""
        parameters = self.parameters()
        if name not in parameters:
            raise RlinfError(
                f"{self.name}: expected one of its parameters, got "
                f"'{name}'{nearest(name, parameters)}. To list them: rlinf param list {self.name}"
            )
        return parameters[name]

    def set(self, name: str, text: str) -> None:
        """Set a parameter from text.

        Raises:
            RlinfError: it is fixed, the text is no such value, or the node refuses it.
        """
        before, about = self.parameter(name)
        if about.read_only:
            live = [
                parameter_name
                for parameter_name, (_, other) in self.parameters().items()
                if not other.read_only
            ]
            raise RlinfError(
                f"{self.name}: {name} is fixed when the node starts, at {shown(before)}. These can "
                f"change while it runs: {', '.join(live)}"
            )
        parameter = read(name, before, text)
        (answer,) = self.call(
            SetParameters, "set_parameters", parameters=[parameter.to_parameter_msg()]
        ).results
        if not answer.successful:
            raise RlinfError(f"{self.name}: {answer.reason}")
        print(
            f"{self.name}: {name} is {shown(parameter.get_parameter_value())}, was {shown(before)}"
        )

    def change(self, label: str) -> None:
        """Execute a transition of the node's life cycle.

        Raises:
            RlinfError: there is no such transition now, or the node refuses it.
        """
        client = self.station.node.create_client(
            GetAvailableTransitions, f"{self.name}/get_available_transitions"
        )
        if not self.station.within(
            self.station.patience_s, client.service_is_ready, f"the service '{client.srv_name}'"
        ):
            raise RlinfError(
                f"{self.name}: expected a lifecycle node (such as an interlock), got another kind"
            )
        answer = self.station.call(client, GetAvailableTransitions.Request())
        transitions = {
            transition.transition.label: transition for transition in answer.available_transitions
        }
        if label not in transitions:
            raise RlinfError(
                f"{self.name}: expected an available transition, {', '.join(transitions)}; got "
                f"'{label}'{nearest(label, transitions)}"
            )
        if not self.call(
            ChangeState, "change_state", transition=transitions[label].transition
        ).success:
            raise RlinfError(
                f"{self.name}: '{label}' is refused, and the node stays "
                f"{transitions[label].start_state.label}. See its log"
            )
        print(f"{self.name}: {label}: done")


def read(name: str, before: ParameterValue, text: str) -> Parameter:
    """Parse typed text as a value of the parameter's type."""
    kind, now = Parameter.Type(before.type), parameter_value_to_python(before)
    try:
        value = READS.get(kind, load_plain)(text)
        return Parameter(
            name,
            kind,
            [float(item) for item in value] if kind == Parameter.Type.DOUBLE_ARRAY else value,
        )
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise RlinfError(
            f"{name}: expected {expected(name, now)}, as {shown(before)} is; got '{text}'"
        ) from error


def shown(value: ParameterValue) -> str:
    """Return a value as it is typed: text unchanged, other values as JSON."""
    plain = parameter_value_to_python(value)
    if isinstance(plain, str):
        return plain or "''"
    return json.dumps(list(plain) if isinstance(plain, array) else plain, default=repr)


def listed(node: NodeClient) -> None:
    """Print every parameter with its value, range, mutability and meaning."""
    rows = []
    for name, (value, about) in node.parameters().items():
        text, ranges = shown(value), [*about.floating_point_range, *about.integer_range]
        rows.append(
            [
                name,
                text if len(text) <= SHOWN else f"{text[:SHOWN]}...",
                " ".join(f"{bounds.from_value:g} to {bounds.to_value:g}" for bounds in ranges),
                "fixed" if about.read_only else "may change",
                about.description,
            ]
        )
    print_table(["parameter", "value", "range", "while it runs", "meaning"], rows)


def main() -> None:
    """Run the command; an RlinfError becomes one line on stderr, and its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["list", "get", "set", "lifecycle"])
    for name in ("station", "node", "parameter", "value"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--arms", nargs="*", default=[])
    options = parser.parse_args()
    with command_context():
        station = StationClient(options.station, options.timeout, options.arms)
        try:
            node = NodeClient(station, options.node)
            if options.what == "list":
                listed(node)
            elif options.what == "get":
                print(shown(node.parameter(options.parameter)[0]))
            elif options.what == "set":
                node.set(options.parameter, options.value)
            else:
                node.change(options.value)
        finally:
            destroy(station.node)


if __name__ == "__main__":
    main()
