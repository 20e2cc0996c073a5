"""Base classes of a station's nodes: parameters with meaning and range, QoS overrides, timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rcl_interfaces.msg import ParameterDescriptor
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription
from rclpy.timer import Timer

from rlinf_core.core.errors import RlinfError
from rlinf_core.specs.ros_parameters import from_parameters
from rlinf_core.specs.topics import check_parameters
from rlinf_ros import memory_bus
from rlinf_ros.escaping import escape_logs, escape_messages
from rlinf_ros.parameters import described_field, expected
from rlinf_ros.parameters import descriptor as described
from rlinf_ros.qos import to_override

if TYPE_CHECKING:
    from rlinf_core.config.base import Settings

STEADY = Clock(clock_type=ClockType.STEADY_TIME)

Model = TypeVar("Model", bound="Settings")


class StationNode(Node):
    """A node whose timers follow real time; simulated time stops whenever the simulator waits.

    It accepts ROS's ``qos_overrides`` if the robot interface leaves a topic's quality of service to
    its user. Its logs and messages accept every text (``rlinf_ros.escaping``).
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        if bus := memory_bus.bus():
            kwargs["cli_args"] = [*bus.arguments, *kwargs.get("cli_args", ())]
        # each has its own clock, because the executor sorts the timers of each clock
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        super().__init__(name, **kwargs)
        escape_logs(self)
        below = f"{self.get_namespace().rstrip('/')}/"
        self._check_overrides(
            lambda full: full.removeprefix(below) if full.startswith(below) else ""
        )

    def declare_parameter(
        self,
        name: str,
        value: Any = None,
        descriptor: ParameterDescriptor | None = None,
        ignore_override: bool = False,
    ) -> Parameter:
        """Declare a parameter as rclpy does.

        ``rlinf_ros.parameters`` holds its meaning and range, and whether it is fixed.

        Raises:
            RlinfError: the given value has another type, or is out of range.
        """
        try:
            return super().declare_parameter(
                name, value, descriptor or described(name, value), ignore_override
            )
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            override = self._parameter_overrides[name].value
            raise RlinfError(
                f"{self.get_name()}: parameter {name}: expected {expected(name, value)}, got "
                f"{override!r}"
            ) from error

    def declare_live(self, name: str, value: Any, apply: Callable[[Any], None]) -> None:
        """Declare a parameter that may change while the node runs.

        ``apply`` takes its value now and after each change.
        """

        def changed(parameters: list[Parameter]) -> None:
            for parameter in parameters:
                if parameter.name == name:
                    apply(parameter.value)

        apply(self.declare_parameter(name, value).value)
        self.add_post_set_parameters_callback(changed)

    def declare_settings(self, name: str, model: type[Model]) -> Model:
        """Declare the parameters below a name, and return them as settings.

        Raises:
            RlinfError: a parameter is wrong; the message names it.
        """
        # an interlock has no use for pydantic
        from rlinf_core.config.checking import validate_parameters

        settings = validate_parameters(
            model, from_parameters(self._below(name)), f"{self.get_name()}: {name}"
        )
        self.declare_structure(name, lambda _: model)
        return settings

    def _below(self, name: str) -> dict[str, Any]:
        """Return the given values below a name; raise RlinfError if it was given as one text."""
        overrides = {key: parameter.value for key, parameter in self._parameter_overrides.items()}
        if text := overrides.get(name):
            raise RlinfError(
                f"{self.get_name()}: parameter {name}: expected parameters {name}.KEY, one for "
                f"each value, got {str(text)[:80]!r}. Write them below {name}: in a file of "
                f"parameters, or as -p {name}.KEY:=VALUE"
            )
        return {
            key.removeprefix(f"{name}."): value
            for key, value in overrides.items()
            if key.startswith(f"{name}.")
        }

    def declare_structure(
        self, name: str, find_model: Callable[[dict[str, Any]], Any] | None = None
    ) -> dict[str, Any]:
        """Declare the given parameters below a name (``name.key``), read-only; return a document.

        Args:
            name: of the structure.
            find_model: finds a document's pydantic model; its fields describe the parameters.

        Raises:
            RlinfError: the structure was given as one text, as JSON was until version 0.1.
        """
        given_values = self._below(name)
        document = from_parameters(given_values)
        fields = (
            getattr(find_model(document), "model_fields", {}) if find_model and document else {}
        )
        for key, value in given_values.items():
            about = described_field(name, key, value, fields.get(key.partition(".")[0]))
            self.declare_parameter(f"{name}.{key}", value, about)
        return document

    def create_publisher(
        self, msg_type: Any, topic: str, qos_profile: Any, **kwargs: Any
    ) -> Publisher:
        """Create a publisher as rclpy does."""
        quality, options = self._quality(topic, qos_profile)
        publisher = super().create_publisher(msg_type, topic, quality, **options, **kwargs)
        bus = memory_bus.bus()
        return bus.connect_publisher(publisher) if bus else escape_messages(publisher)

    def create_subscription(
        self,
        msg_type: Any,
        topic: str,
        callback: Any,
        qos_profile: Any,
        lazy: bool = False,
        **kwargs: Any,
    ) -> Subscription:
        """Create a subscription as rclpy does; ``lazy`` is as in ``rlinf_ros.qos.subscription``."""
        quality, options = self._quality(topic, qos_profile)
        subscription = super().create_subscription(
            msg_type, topic, callback, quality, **options, **kwargs
        )
        bus = memory_bus.bus()
        return bus.connect_subscription(self, subscription, lazy) if bus else subscription

    def _quality(self, topic: str, quality: Any) -> tuple[Any, dict[str, Any]]:
        """Return the quality of service with the user's overrides.

        Raises:
            RlinfError: an override is not allowed, also by a robot driver's topic name.
        """
        name = self.resolve_topic_name(topic)
        self._check_overrides(lambda full: topic if full == name else "")
        return to_override(topic, quality)

    def _check_overrides(self, name_of: Callable[[str], str]) -> None:
        # rclpy offers no other access to undeclared parameters
        overrides = getattr(self, "_parameter_overrides", {})
        check_parameters({key: parameter.value for key, parameter in overrides.items()}, name_of)

    def create_timer(
        self,
        timer_period_sec: float,
        callback: Callable[..., Any],
        callback_group: Any = None,
        clock: Clock | None = None,
        autostart: bool = True,
    ) -> Timer:
        """Create a timer as rclpy does, on a steady clock unless another is given."""
        waits = {} if autostart else {"autostart": False}  # rclpy before 7.1.2 does not know it
        return super().create_timer(
            timer_period_sec, callback, callback_group, clock or self._steady, **waits
        )


class ControlNode(StationNode):
    """A node of the control path: fixed at its start, and waiting only for its own topics.

    Its parameters can be read; the events executor spends no time on unused services.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(
            name,
            parameter_overrides=[Parameter("start_type_description_service", value=False)],
            **kwargs,
        )
