"""S8, S12, S13 for every input sequence: whatever comes in, what goes out stays inside the envelope
at every tick.
"""

import math
import os
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rlinf_core.interlock import EStop, Mode, adopt_limits
from tests.interlock.conftest import HOME, JOINTS, Rig, chunk, joint_limits, limits
from tests.interlock.envelope import TOLERANCE, WORST, Envelope, rotation_vector

SEQUENCES = int(os.environ.get("RLINF_SEQUENCES", "100000"))  # of each shape, at length
EDGES = [math.nan, math.inf, -math.inf, 0.0, 1e300, -0.0, 0.02, -0.02, 5e-324]
RANDOM = st.randoms(use_true_random=False)

# far from any wall in the middle
WIDE = dict(box_low=(0.4, -0.1, 0.1), box_high=(0.6, 0.1, 0.3), cone=0.25)
S9 = dict(
    acceleration=1.0, jerk=10.0, rotation_speed=0.5, rotation_acceleration=2.5, rotation_jerk=25.0
)
# the walls are never far
NARROW = dict(box_low=(0.47, -0.02, 0.17), box_high=(0.54, 0.03, 0.25), cone=0.06)
SHAPES = {
    "tool, no jerk limit": limits(**NARROW),
    "tool and rotation, jerk limited": limits(**WIDE, **S9),
    "tool, rotation, gripper, 250 Hz": limits(**NARROW, **S9, gripper_width=0.08, tick=0.004),
    "joints, jerk limited": joint_limits(
        joint_low=tuple(q - 0.17 for q in JOINTS), joint_high=tuple(q + 0.14 for q in JOINTS)
    ),
}


class AnyInput(RuleBasedStateMachine):
    """The interlock under everything that can come in, in any order."""

    shape = "tool, no jerk limit"

    @initialize()
    def start(self):
        self.limits = SHAPES[self.shape]
        self.rig = Rig(
            self.limits,
            joints=JOINTS if self.limits.joint_low else None,
            gripper=0.04 if self.limits.gripper_width else None,
        )
        self.envelopes = [Envelope(group, self.shape) for group in self.limits.groups]
        self.estop, self.age_ns, self.distance, self.seq = False, 0, None, 100
        self.speeds, self.frame = [0.0] * len(self.envelopes), ""
        for _ in range(30):
            self.rig.tick(estops=self.estops())
        for envelope, position in zip(self.envelopes, self.published(), strict=True):
            envelope.restart(position)
        self.tick(arm=True)

    def estops(self):
        return (EStop("pendant", self.estop, 0.0),)

    def published(self):
        """Return the published set-point in the coordinates of the groups."""
        output = self.rig.output
        if self.limits.control_mode == "joint_delta":
            arm = [output.joints]
        else:
            arm = [output.target[:3], rotation_vector(self.limits.orientation, output.target[3:])]
        return arm + ([(output.gripper,)] if self.limits.gripper_width else [])

    def measured(self):
        rig = self.rig
        if self.limits.control_mode == "joint_delta":
            return [rig.joints]
        arm = [rig.pose[:3], rotation_vector(self.limits.orientation, rig.pose[3:])]
        return arm + ([(rig.gripper,)] if self.limits.gripper_width else [])

    def tick(self, *chunks, **inputs):
        before, measured, previous = self.rig.state, self.measured(), self.rig.output
        inputs = {
            "estops": self.estops(),
            "pose_age_ns": self.age_ns,
            "distance": self.distance,
            "frame": self.frame,
        } | inputs
        output = self.rig.tick(*chunks, **inputs)
        reseeded = {event.cause for event in self.rig.events if event.kind == "reseeded"}
        if "restart" in reseeded:
            assert inputs.get("restart") and before.mode is not Mode.FAULT, (
                "only where the arm itself was put elsewhere"
            )
        if reseeded & {"recover", "robot"}:
            follows = not inputs.get("robot_fault") and not (
                before.recovering and previous.suppress_setpoint
            )
            assert not follows, (
                "only where the robot follows nothing, or has been told nothing since"
            )
            # arming in that tick is the same as "adrift": nothing was published before, and the
            # first set-point is the measured place of an arm that rests
            arms = inputs.get("arm") and previous.suppress_setpoint and before.mode is Mode.DISARMED
            assert output.mode in (Mode.FAULT, Mode.DISARMED) or arms
        if "adrift" in reseeded:
            assert inputs.get("arm") and previous.suppress_setpoint and before.mode is Mode.DISARMED
        if reseeded & {"restart", "recover", "robot", "adrift"}:
            for envelope, position in zip(self.envelopes, measured, strict=True):
                envelope.restart(position)
        if inputs.get("late_s", 0.0) > 0.0:
            for envelope in self.envelopes:
                envelope.stood()
        for envelope, position in zip(self.envelopes, self.published(), strict=True):
            envelope.check(position)
        self.check_latches(before.mode, before.cause, output.mode, inputs)
        motions = self.rig.state.motions
        speeds = [
            group.norm(motion.velocity)
            for group, motion in zip(self.limits.groups, motions, strict=True)
        ]
        # S12: nothing but braking
        if output.mode is not Mode.ACTIVE and self.rig.state.goal is None:
            assert all(now <= was + 1e-12 for now, was in zip(speeds, self.speeds, strict=True))
        self.speeds = speeds

    def check_latches(self, before, cause, after, inputs):
        """S13, S14."""
        if before is Mode.FAULT and after is not Mode.FAULT:
            assert inputs.get("reset_fault") == cause and not self.estop and after is Mode.DISARMED
        if before is Mode.DISARMED and after is not Mode.DISARMED:
            assert inputs.get("arm") is True and after in (
                Mode.ARMED,
                Mode.ACTIVE,
                Mode.FAULT,
                Mode.HOLD,
            )
        if self.estop:
            assert after in (Mode.FAULT, Mode.DISARMED)

    @rule(random=RANDOM)
    def any_chunk(self, random):
        size = random.choice([*self.limits.action_sizes] * 3 + [0, 2, 9])
        actions = [
            tuple(
                random.choice(EDGES) if random.random() < 0.2 else random.uniform(-0.05, 0.05)
                for _ in range(size)
            )
            for _ in range(random.randint(0, 3))
        ]
        stamp = self.rig.now - random.randint(-5, 5) * 10_000_000
        mode = self.limits.control_mode if random.random() < 0.8 else "joint"
        self.tick(
            chunk(
                random.randint(0, 60),
                stamp,
                actions,
                random.choice([0.1, 0.1, 0.05, 0.0, math.nan]),
                random.choice(["policy", "policy", "operator", ""]),
                random.choice("aab"),
                mode,
            )
        )

    @rule(random=RANDOM)
    def good_chunk(self, random):
        action = tuple(
            random.uniform(-0.05, 0.05) for _ in range(random.choice(self.limits.action_sizes))
        )
        self.seq += 1
        self.tick(
            chunk(
                self.seq,
                self.rig.now,
                (action,) * 3,
                source=random.choice(["policy", "policy", "operator"]),
                mode=self.limits.control_mode,
            )
        )
        self.silence(random)

    @rule(random=RANDOM)
    def silence(self, random):
        for _ in range(random.randint(1, 30)):
            self.tick()

    @rule(random=RANDOM)
    def arm(self, random):
        self.tick(arm=random.random() < 0.7)

    @rule(random=RANDOM)
    def end_episode(self, random):
        self.tick(end_episode=True)

    @rule(random=RANDOM)
    def restart(self, random):
        self.tick(restart=True)

    @rule(random=RANDOM)
    def press_or_release_the_estop(self, random):
        self.estop = random.random() < 0.4
        self.tick()

    @rule(random=RANDOM)
    def reset_the_fault(self, random):
        self.tick(reset_fault=self.rig.state.cause if random.random() < 0.7 else "something_else")

    @rule(random=RANDOM)
    def recover_the_robot(self, random):
        self.tick(recover=True, robot_fault="reflex" if random.random() < 0.7 else "")

    @rule(random=RANDOM)
    def state_grows_old(self, random):
        self.age_ns = random.choice([0, 0, 0, 60, 600]) * 1_000_000
        self.tick()

    @rule(random=RANDOM)
    def clock_jumps(self, random):
        self.rig.now += random.choice([7_000_000, 3_000_000_000, -2_000_000_000])
        self.tick()

    @rule(random=RANDOM)
    def the_arm_is_blocked(self, random):
        self.rig.follow = random.random() < 0.5

    @rule(random=RANDOM)
    def measured_state_is_no_state(self, random):
        self.tick(
            pose=random.choice([None, (math.nan, *HOME[1:]), (*HOME[:3], 0.0, 0.0, 0.0, 0.0)]),
            joints=random.choice([None, (math.nan,) * 7]),
        )

    @rule(random=RANDOM)
    def measured_place_jumps(self, random):
        """Move the measured place for one tick, or for good (S21)."""
        rig, before = self.rig, (self.rig.pose, self.rig.joints)
        pose = tuple([p + random.uniform(-0.4, 0.4) for p in HOME[:3]])
        rig.pose = (*pose, *HOME[3:])
        rig.joints = rig.joints and tuple([q + random.uniform(-0.3, 0.3) for q in JOINTS])
        follow, rig.follow = rig.follow, False
        for _ in range(random.choice([1, 1, 3, 9, 12, 80])):
            self.tick()
        rig.follow = follow
        if random.random() < 0.7:
            rig.pose, rig.joints = before

    @rule(random=RANDOM)
    def another_frame(self, random):
        self.frame = random.choice(["", "", "base_link", "camera"])
        self.tick()

    @rule(random=RANDOM)
    def a_hand_moves_the_arm(self, random):
        rig, follow = self.rig, self.rig.follow
        rig.follow = False
        by = [random.uniform(-0.002, 0.002) for _ in range(7)]
        for _ in range(random.randint(1, 60)):
            rig.pose = (*[p + d for p, d in zip(rig.pose[:3], by, strict=False)], *rig.pose[3:])
            rig.joints = rig.joints and tuple([q + d for q, d in zip(rig.joints, by, strict=True)])
            self.tick()
        for _ in range(random.choice([0, 15, 60])):
            self.tick()
        rig.follow = follow

    @rule(random=RANDOM)
    def the_machine_stalls(self, random):
        """S24: the robot side has stood at the last target meanwhile."""
        late_s = random.choice([0.02, 0.05, 1.5])
        self.rig.now += round(late_s * 1e9)
        self.tick(late_s=late_s)

    @rule(random=RANDOM)
    def inputs_fall_silent_or_are_doubled(self, random):
        self.tick(
            silent=random.choice([(), ("wrench",)]),
            doubled=random.choice([(), ("policy/action",)]),
            foreign=random.choice([(), (), ("target_pose",)]),
            clock_stepped=random.random() < 0.2,
        )

    @rule(random=RANDOM)
    def it_touches(self, random):
        self.tick(wrench=random.choice([(5.0, 0.0), (30.0, 0.0), (60.0, 0.0), (math.nan, 0.0)]))

    @rule(random=RANDOM)
    def something_comes_near(self, random):
        self.distance = random.choice(
            [None, (0.01, 0.0), (0.0, 0.0), (1.0, 0.0), (1.0, 9.0), (math.nan, 0.0)]
        )
        self.tick()

    @rule(random=RANDOM)
    def limits_are_tightened(self, random):
        """S19, live: the smaller workspace holds at once; what is faster than allowed from now on
        brakes.
        """
        old, less = self.limits, random.uniform(0.9, 1.0)
        changes = {
            name: getattr(old, name) * less
            for name in ("speed", "rotation_speed", "joint_speed", "cone")
        }
        changes |= {
            name: tuple(value + sign * random.uniform(0.0, 5e-3) for value in getattr(old, name))
            for name, sign in (
                ("box_low", 1),
                ("box_high", -1),
                ("joint_low", 1),
                ("joint_high", -1),
            )
        }
        new = replace(old, **changes)
        state, refused = adopt_limits(new, self.rig.state, old)
        if not refused:
            self.limits, self.rig.limits, self.rig.state = new, new, state
            for envelope, group in zip(self.envelopes, new.groups, strict=True):
                envelope.group = replace(group, speed=envelope.group.speed)
                envelope.outside = math.inf if envelope.outside > 0.0 else 0.0
        self.tick()

    @invariant()
    def something_is_always_commanded(self):
        if hasattr(self, "rig"):
            assert self.rig.output.target is not None or self.rig.output.joints


def check_limits(shape, sequences, evidence):
    worst = WORST[shape]
    evidence(
        "S8",
        f"{shape}: {sequences:,} sequences, 0 violations; nearest to its limit: "
        + ", ".join(
            f"{name} {worst[name]:+.1e}" for name in TOLERANCE if math.isfinite(worst[name])
        ),
        "0 violations",
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_s08_s12_s13_hold_for_any_input(shape, evidence):
    case = type("AnyInput", (AnyInput,), {"shape": shape}).TestCase
    case.settings = settings(
        max_examples=60,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()
    check_limits(shape, 60, evidence)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shape", SHAPES)
def test_s08_s12_s13_hold_for_any_input_at_length(shape, evidence):
    """The same machine with its rules drawn by seed, which is ten times as fast."""
    rules = [
        function
        for function in vars(AnyInput).values()
        if hasattr(function, "hypothesis_stateful_rule")
    ]
    assert len(rules) > 10
    for seed in range(SEQUENCES):
        random, machine = Random(seed), AnyInput()
        machine.shape = shape
        machine.start()
        try:
            for _ in range(20):
                random.choice(rules)(machine, random=random)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} of '{shape}'") from error
    check_limits(shape, SEQUENCES, evidence)
