"""A simulated station without ROS: a simulator and its task behind the real interlock core."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError, SpecError
from rlinf_core.interlock import (
    Applied,
    ArmReport,
    Chunk,
    Inputs,
    Limits,
    Mode,
    State,
    load_limits,
    step,
)
from rlinf_core.interlock.types import FULL_ACTION, NS, ActionSlice
from rlinf_core.recipes import Recipe, station_robot, station_task
from rlinf_core.recipes.schema import Dynamics, Randomise
from rlinf_core.specs.arrays import ActionSpec, Arrays, first_not_finite
from rlinf_core.specs.frames import frames_fault
from rlinf_core.tasks.scripts import make_script
from rlinf_core.tasks.task import StepResult, Task, observe, step_result, with_shaping
from sim_bridges.core.interface import Arms, HasTrueChannels, Simulator, as_arms, instruction_of
from sim_bridges.core.isolated import make
from sim_bridges.core.randomization import Randomised


class GuardedArm:
    """One arm of a simulated station: its part of the action, its limits and its interlock core.

    Attributes:
        blocked: why it could not move in the last tick; the other arms use it in the next tick.
    """

    def __init__(self, name: str, limits: Limits, action: ActionSpec) -> None:
        self.name = name
        self.limits = limits
        self.slice = action.rows(name)
        self.rows = (
            ActionSlice(self.slice.start, self.slice.stop, action.dim) if name else FULL_ACTION
        )
        self.box = np.array(limits.box_low), np.array(limits.box_high)
        self.state, self.blocked = State(), Mode.DISARMED.name.lower()
        self.applied: tuple[Applied, ...] = ()


class SimulatedStation:
    """A simulator and its task at the control rate, without ROS.

    With the interlock it equals the station's processes in lockstep: the same ticks, limits and
    time steps. Without it (``guarded`` False) the target moves by the requested action within the
    workspace. This is faster, and meant for simulators that are faster than the interlock.

    Args:
        simulator: simulator of one or several arms.
        limits: limits of the arm, or of each arm by name.

    Raises:
        RecipeError: tick or arms of simulator, limits and task differ, or the limits need contact
            or joint measurements, which are not available here.
    """

    def __init__(
        self,
        simulator: Simulator | Arms,
        task: Task,
        limits: Limits | Mapping[str, Limits],
        guarded: bool = True,
    ) -> None:
        self.simulator: Any = simulator
        self.robot = as_arms(simulator)
        self.task = task
        self.limits = limits
        self._has_errors = isinstance(simulator, HasTrueChannels)  # of perception
        limits_by_arm = {"": limits} if isinstance(limits, Limits) else limits
        if not self.robot.arms == tuple(limits_by_arm) == (task.spec.action.arms or ("",)):
            raise RecipeError(
                f"the simulator has {_list_arms(self.robot.arms)}: expected limits and a task for "
                f"these arms, got limits for {_list_arms(limits_by_arm)} and a task for "
                f"{_list_arms(task.spec.action.arms)}"
            )
        ticks = 1.0 / task.spec.control_hz / simulator.tick_s
        self._ticks = round(ticks)
        for tick in (arm_limits.tick for arm_limits in limits_by_arm.values()):
            if (
                abs(tick - simulator.tick_s) > 1e-9
                or abs(ticks - self._ticks) > 1e-6
                or not self._ticks
            ):
                raise RecipeError(
                    f"the simulator ticks every {simulator.tick_s} s: expected the same value for "
                    f"limits.tick, got {tick}, and a step of the task "
                    f"({1 / task.spec.control_hz:.3f} s) to be whole ticks"
                )
        self._tick_ns = round(simulator.tick_s * NS)
        self._now = 0
        self._seq = 0
        self._arms = [
            GuardedArm(name, arm_limits, task.spec.action)
            for name, arm_limits in limits_by_arm.items()
        ]
        for name, arm_limits in limits_by_arm.items() if guarded else ():
            _check_limits(name, arm_limits)
        self._play = self._play_guarded if guarded else self._play_unguarded
        for arm in () if guarded else self._arms:
            names = task.spec.action.names[arm.slice]
            sizes = (3, 4) if arm.limits.gripper_width else (3,)
            if len(names) not in sizes:
                raise RecipeError(
                    "simulation.interlock: expected true for a task whose actions are "
                    f"{', '.join(names)}. Without the interlock, actions move only x, y, z and a "
                    "gripper in fourth place"
                )
        self._fractions = np.arange(1, self._ticks + 1)[:, None] / self._ticks
        self.script = make_script(task, noise=0.12) if task.script else None
        self.held = False
        self._success_channels = sorted(
            name for name in task.channels if not name.startswith("camera/")
        )

    def reset(self, seed: int, recorded: Arrays | None = None) -> Arrays:
        """Lay out scene ``seed`` and return its first observation.

        A fault of the last episode is reset by its name, as a station's scripted operator does.

        Args:
            seed: number of the scene.
            recorded: channels of a recording; the simulator's ``arrange`` puts tool and object
                where they were.
        """
        self.simulator.reset(seed)
        if recorded is not None:
            self.simulator.arrange(recorded)
        if any(arm.state.mode is Mode.FAULT for arm in self._arms):
            self._tick(
                {
                    arm.name: {"reset_fault": arm.state.cause}
                    for arm in self._arms
                    if arm.state.mode is Mode.FAULT
                },
                move=False,
            )
        self._tick(
            {
                arm.name: {
                    "end_episode": True,
                    "restart": True,
                    "arm": arm.state.mode is Mode.DISARMED or None,
                }
                for arm in self._arms
            },
            move=False,
        )
        self._targets, self._gripper_widths = self.robot.tcp_poses(), self.robot.gripper_widths()
        self.step_index = 0
        self.update_channels()
        self._result = step_result(self.task, self._true_channels(), 0)
        if self.script is not None:
            self.script.reset(seed)
        return observe(self.task.spec, self.channels)

    def step(self, action: np.ndarray) -> tuple[Arrays, StepResult]:
        """Execute one normalised action (dim,) for a time step.

        Afterwards ``self.executed`` is the normalised action after the interlock, and ``self.held``
        says whether it holds an arm.
        """
        self._play(self.task.spec.action.to_si(action))
        self.step_index += 1
        self.update_channels()
        self._result = step_result(self.task, self._true_channels(), self.step_index, self._result)
        return observe(self.task.spec, self.channels), self._result

    @property
    def instruction(self) -> str:
        """Instruction of the current scene."""
        return instruction_of(self.simulator) or self.task.spec.instruction

    @property
    def hold_reasons(self) -> list[str]:
        """Return for each arm why the interlock holds it, such as ``FAULT divergence``.

        It is empty if it may move.
        """
        return [
            ""
            if arm.state.mode in (Mode.ARMED, Mode.ACTIVE)
            else f"{arm.state.mode.name} {arm.state.cause}"
            for arm in self._arms
        ]

    def expert(self) -> np.ndarray:
        """Return the action of the task's script, (dim,)."""
        if self.script is None:
            raise RecipeError(
                "the task has no script for demonstrations. Name one ('script' in its file)"
            )
        return self.script.act(self.channels)

    def _play_guarded(self, si: np.ndarray) -> None:
        self._seq += 1
        actions = (tuple(si.tolist()),)
        chunks = {
            arm.name: {
                "chunks": (
                    Chunk(
                        "policy",
                        "vector",
                        self._seq,
                        0,
                        self._now,
                        self._ticks * self.simulator.tick_s,
                        self.task.spec.action.control_mode,
                        arm.rows.part(actions),
                    ),
                )
            }
            for arm in self._arms
        }
        executed = np.zeros(len(si))
        for tick in range(self._ticks):
            self._tick(chunks if tick == 0 else {})
            for arm in self._arms:
                executed[arm.slice] += (
                    sum(np.array(record.executed) for record in arm.applied) if arm.applied else 0.0
                )
        self.executed = self.task.spec.action.from_si(executed)
        self.held = any(arm.state.mode is not Mode.ACTIVE for arm in self._arms)

    def _play_unguarded(self, si: np.ndarray) -> None:
        measured = self.robot.tcp_poses()
        starts, deltas, executed = [], [], []
        for arm in self._arms:
            limits, action = arm.limits, si[arm.slice]
            start = self._targets[arm.name][:3].copy()
            clipped = _clip(
                start + action[:3],
                measured[arm.name][:3] - limits.divergence,
                measured[arm.name][:3] + limits.divergence,
            )
            if len(action) == 4:
                width = self._gripper_widths[arm.name] or 0.0
                self._gripper_widths[arm.name] = float(
                    np.clip(width + action[-1], 0.0, limits.gripper_width)
                )
            starts.append(start)
            deltas.append(_clip(clipped, *arm.box) - start)
            executed += [deltas[-1], action[3:]]
        for fraction in self._fractions:
            for arm, start, delta in zip(self._arms, starts, deltas, strict=True):
                self._targets[arm.name][:3] = start + fraction * delta
            self.robot.advance_arms(self._targets, self._gripper_widths)
        self.executed = self.task.spec.action.from_si(np.concatenate(executed))

    def _tick(self, inputs_by_arm: dict[str, dict[str, Any]], move: bool = True) -> None:
        """Run one tick of each arm's core, with further inputs by arm.

        Each core uses the other arms' output of the previous tick, so their order does not matter.
        """
        poses, gripper_widths = self.robot.tcp_poses(), self.robot.gripper_widths()
        others = (
            [ArmReport(arm.name, arm.blocked) for arm in self._arms] if len(self._arms) > 1 else []
        )
        targets, widths = {}, {}
        for arm in self._arms:
            x, y, z, qx, qy, qz, qw = poses[arm.name].tolist()
            inputs = Inputs(
                pose=(x, y, z, qx, qy, qz, qw),
                gripper=gripper_widths[arm.name],
                enable=True,
                enable_age_s=0.0,  # held as by a scripted operator
                others=tuple([other for other in others if other.name != arm.name]),
                **inputs_by_arm.get(arm.name, {}),
            )
            arm.state, output, _ = step(arm.limits, arm.state, inputs, self._now)
            arm.applied, arm.blocked = output.applied, output.blocked
            targets[arm.name], widths[arm.name] = np.array(output.target), output.gripper
        if move:
            self.robot.advance_arms(targets, widths)
            self._now += self._tick_ns

    def _true_channels(self) -> Arrays:
        """Return the true state for the judgement of success, without errors of perception.

        Raises:
            SpecError: a channel of the task is not finite; the text names it.
        """
        truth = self.channels | (self.simulator.true_channels() if self._has_errors else {})
        for name in self._success_channels:
            if (values := truth.get(name)) is not None and not np.isfinite(values).all():
                raise SpecError(f"'{name}': expected finite values, got {first_not_finite(values)}")
        return truth

    def update_channels(self) -> None:
        """Take the simulator's present channels, and the pictures that the task observes."""
        channels = self.simulator.channels()
        for image in self.task.spec.images:
            camera = image.source.split("/")[1]
            picture = self.simulator.render(camera, *image.shape[:2])
            if fault := frames_fault(picture, image.shape):
                raise SpecError(f"'{image.source}': {fault}. Correct the simulator's method render")
            channels[image.source] = picture
        self.channels: Arrays = channels


def _list_arms(arms: Iterable[str]) -> str:
    names = ", ".join(filter(None, arms))
    return f"the arms {names}" if names else "one arm without a name"


def _check_limits(arm: str, limits: Limits) -> None:
    """Raise RecipeError for limits that this station cannot enforce.

    It measures only tool pose and gripper.
    """
    unsupported = {
        name: getattr(limits, name)
        for name in ("contact_force", "contact_torque", "contact_fault")
        if getattr(limits, name) < math.inf
    }
    if limits.joint_names:
        unsupported["joint_names"] = list(limits.joint_names)
    if limits.control_mode != "tcp_delta":
        unsupported["control_mode"] = limits.control_mode
    if unsupported:
        actual = ", ".join(f"{name}: {value}" for name, value in unsupported.items())
        limits_name = f"limits of {arm}" if arm else "limits"
        raise RecipeError(
            f"{limits_name}: expected contact_force, contact_torque and contact_fault unlimited, "
            "no joint_names, and tcp_delta where a station is simulated without ROS, which "
            f"measures neither contact nor joints; got {actual}. Extend sim_bridges/limits.yaml, "
            "or train through the station (rlinf demo)"
        )


def _clip(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Clip values; this is five times faster than ``np.clip`` for three numbers."""
    return np.minimum(np.maximum(values, low), high)


def simulated_station(recipe: Recipe) -> SimulatedStation:
    """Return a recipe's station without ROS.

    Simulator, interlock core and task run in this process.
    """

    robot = station_robot(recipe)
    if robot.driver != "simulator":
        raise RecipeError(
            f"station.robot: expected a simulated one, got '{recipe.station.robot}', whose driver "
            f"is {robot.driver}"
        )
    task = station_task(recipe)
    if recipe.simulation.shaping:
        task = with_shaping(task, recipe.simulation.shaping)
    simulator: Any = make(robot.simulator, **robot.options)
    ranges, dynamics = recipe.simulation.randomise, recipe.simulation.dynamics
    if ranges != Randomise() or dynamics != Dynamics():
        if robot.arms:
            name = "randomise" if ranges != Randomise() else "dynamics"
            raise RecipeError(
                f"simulation.{name}: expected nothing for robot '{recipe.station.robot}', since "
                "several arms are not supported here. Leave it out"
            )
        simulator = Randomised(simulator, ranges, dynamics)
    limits = {arm: load_limits(path) for arm, path in robot.limits_by_arm.items()}
    return SimulatedStation(
        simulator, task, limits if robot.arms else limits[""], recipe.simulation.interlock
    )
