"""Managed (lifecycle) nodes: how a node of a station is configured, activated and deactivated.

The constructor reads the parameters and makes the topics. The life cycle decides how the node uses
them. An inactive node commands nothing and begins nothing; the table in docs/howto/ros.md describes
each node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lifecycle_msgs.srv import ChangeState
from rclpy.lifecycle import (
    LifecycleNodeMixin,
    LifecycleState,
    ManagedEntity,
    TransitionCallbackReturn,
)

SUCCESS = TransitionCallbackReturn.SUCCESS
FAILURE = TransitionCallbackReturn.FAILURE
ERROR = TransitionCallbackReturn.ERROR


class SafeTransitions(LifecycleNodeMixin):
    """rclpy's life cycle; impossible transitions do not end the process (ros2/rclpy#1209)."""

    get_logger: Any  # the node's; this class is its mixin

    def _LifecycleNodeMixin__on_change_state(  # the private method's mangled name
        self, request: ChangeState.Request, response: ChangeState.Response
    ) -> ChangeState.Response:
        try:
            base_method = "_LifecycleNodeMixin__on_change_state"
            changed: ChangeState.Response = getattr(super(), base_method)(request, response)
            return changed
        except Exception as error:
            self.get_logger().error(
                f"no such transition from '{self.state_label}': {request.transition.id} "
                f"'{request.transition.label[:80]}' ({error})"
            )
            response.success = False
            return response

    @property
    def state_label(self) -> str:
        """The state's name: unconfigured, inactive, active, finalized, or a transition's."""
        return str(self._state_machine.current_state[1])


class Managed(SafeTransitions):
    """Mixin before ``StationNode`` or ``ControlNode``.

    A subclass overrides the hooks that it needs.

    Attributes:
        active: whether the node is active. Hot paths read it.
    """

    active = False
    declare_parameter: Any  # the node's

    def __init__(self, *arguments: Any, **kwargs: Any) -> None:
        super(ManagedEntity, self).__init__(*arguments, **kwargs)  # the mixin needs the node
        LifecycleNodeMixin.__init__(self)
        self._autostart = bool(self.declare_parameter("autostart", True).value)

    def begin_life(self) -> None:
        """Configure and activate the node, unless a lifecycle manager does (``autostart``)."""
        if self._autostart and self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    # Hooks
    def configure(self) -> str:
        """Open the node's resources; return why that is impossible, or an empty string."""
        return ""

    def activate(self) -> str:
        """Forget inputs from the inactive time; return why the node cannot be active, or ""."""
        return ""

    def deactivate(self) -> None:
        """End the node's activity; ``active`` is False already."""

    def cleanup(self) -> None:
        """Close the resources that ``configure`` opened."""

    # rclpy's transitions
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition(self.configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        result = self._transition(self.activate)
        self.active = result == SUCCESS
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.active = False
        return self._transition(self.deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition(self.cleanup)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        was_active = self.active
        self.active = False
        ended = self._transition(self.deactivate) if was_active else SUCCESS
        return ended if ended != SUCCESS else self._transition(self.cleanup)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.active = False
        return SUCCESS  # unconfigured: it can be configured again

    def _transition(self, hook: Callable[[], str | None]) -> TransitionCallbackReturn:
        try:
            reason = hook()
        except Exception as error:  # rclpy discards it
            self.get_logger().error(f"{hook.__name__} failed: {type(error).__name__}: {error}")
            return ERROR
        if reason:
            self.get_logger().error(f"cannot {hook.__name__}: {reason}")
            return FAILURE
        return SUCCESS
