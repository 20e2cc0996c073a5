"""The parameter ``inject`` of a vendor driver's twin: the fault that it has now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

from rlinf_core.core.errors import nearest
from rlinf_ros.diagnostics import OK, WARN, Health


def declare_inject(
    node: Node, faults: Sequence[str], inject: Callable[[str], None] | None = None
) -> None:
    """Declare the parameter, and refuse values that are no fault.

    Args:
        node: the twin.
        faults: the faults; the first one is empty, for none.
        inject: called with each new value.
    """
    names = ", ".join(faults[1:])
    node.declare_parameter(
        "inject",
        "",
        ParameterDescriptor(description=f"present fault: one of {names}; empty for nothing"),
    )

    def check(parameters: list[Parameter]) -> SetParametersResult:
        values = [parameter.value for parameter in parameters if parameter.name == "inject"]
        for value in values:
            if value not in faults:
                return SetParametersResult(
                    successful=False,
                    reason=f"inject: expected nothing or one of {names}; got '{value}'"
                    f"{nearest(str(value), faults)}",
                )
        for value in values:
            if inject is not None:
                inject(value)
        return SetParametersResult(successful=True)

    node.add_on_set_parameters_callback(check)


def injection_health(node: Node, values: dict | None = None) -> Health:
    """Return a twin's health: a warning while a fault is injected."""
    if fault := node.get_parameter("inject").value:
        return Health(WARN, f"injected: {fault}", values or {})
    return Health(OK, "follows its commands", values or {})
