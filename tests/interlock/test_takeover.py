"""S16: a thousand handovers at random moments, each way, between hands that want random things."""

from random import Random

import numpy as np

from rlinf_core.interlock import Mode
from rlinf_core.interlock.takeover import AUTONOMOUS, CORRECTING, PAUSED, TRANSITIONS, takeover
from tests.interlock.conftest import HOME, S9, Rig, chunk, limits, release

HANDOVERS, TICKS = 1000, 10  # each way; ticks of an action


class Hands:
    """A policy that never stops, and an operator who comes and goes, both wanting anything that the
    task allows.
    """

    def __init__(self, seed):
        self.rig, self.random = Rig(limits(**S9)).arm(), Random(seed)
        self.seq, self.targets, self.sources = 0, [np.array(HOME[:3])], []
        self.takeovers = []

    def wants(self, source):
        self.seq += 1
        action = tuple(self.random.uniform(-0.02, 0.02) for _ in range(3))
        return chunk(self.seq, self.rig.now, (action,), source=source)

    def lets_go(self):
        """The operator says so once their last action has been played."""
        self.seq += 1
        self.rig.tick(release(self.seq, self.rig.now))
        self.targets.append(np.array(self.rig.output.target[:3]))
        self.sources.append(self.rig.output.source)
        self.takeovers.append(takeover(self.rig.output.source, self.rig.state.mode))

    def play(self, ticks, *sources):
        """Each of the sources sends an action whenever its last one is over."""
        for tick in range(ticks):
            output = self.rig.tick(*(self.wants(source) for source in sources if tick % TICKS == 0))
            self.targets.append(np.array(output.target[:3]))
            self.sources.append(output.source)
            self.takeovers.append(takeover(output.source, self.rig.state.mode))


def test_s16_at_a_thousand_handovers_each_way_the_command_keeps_to_its_acceleration(evidence):
    hands = Hands(0)
    for _ in range(HANDOVERS):
        hands.play(hands.random.randrange(3, 20), "policy")
        hands.play(hands.random.randrange(3, 20), "policy", "operator")
        hands.lets_go()
        hands.play(60, "policy")  # the pause, and then it goes on
    moved = [source for source in hands.sources if source]
    changes = [
        (before, after) for before, after in zip(moved, moved[1:], strict=False) if before != after
    ]
    assert (
        changes.count(("policy", "operator")) >= HANDOVERS
        and changes.count(("operator", "policy")) >= HANDOVERS - 1
    )
    follow = set(zip(hands.takeovers, hands.takeovers[1:], strict=False))
    changes_of_hands = {pair for pair in follow if len(set(pair)) > 1}
    assert (
        {(AUTONOMOUS, CORRECTING), (CORRECTING, PAUSED), (PAUSED, AUTONOMOUS)}
        <= changes_of_hands
        <= TRANSITIONS.keys()
    )
    tick = hands.rig.limits.tick
    velocity = np.diff(hands.targets, axis=0) / tick
    step = np.linalg.norm(np.diff(velocity, axis=0), axis=1).max()
    assert np.linalg.norm(velocity, axis=1).max() > 0.1, "it moves"
    assert step <= hands.rig.limits.acceleration * tick + 1e-9
    evidence(
        "S16",
        f"{HANDOVERS} handovers each way: the velocity changes by {1e3 * step:.2f} mm/s a tick at "
        f"most",
        f"{1e3 * hands.rig.limits.acceleration * tick:.0f} mm/s",
    )


def test_s16_a_person_who_rests_is_followed_through_a_pause_too(rig):
    """The policy's chunk comes in the tick in which the operator's, who moved nothing, is over."""
    for seq in (1, 2):
        rig.tick(chunk(seq, rig.now, ((0.0, 0.0, 0.0),), source="operator"))
        hands = [takeover(rig.tick().source, rig.state.mode) for _ in range(9 + 10 * (seq == 2))]
    hands.append(takeover(rig.tick(release(3, rig.now)).source, rig.state.mode))
    for seq in range(1, 4):
        hands += [
            takeover(rig.tick(*([chunk(seq, rig.now)] if tick == 0 else [])).source, rig.state.mode)
            for tick in range(10)
        ]
    changes = [
        (before, after) for before, after in zip(hands, hands[1:], strict=False) if before != after
    ]
    assert changes == [(CORRECTING, PAUSED), (PAUSED, AUTONOMOUS)]


def test_the_table_has_no_way_from_a_person_to_the_policy_but_through_a_pause():
    assert (CORRECTING, AUTONOMOUS) not in TRANSITIONS
    assert [takeover(source) for source in ("policy", "operator", "")] == [
        AUTONOMOUS,
        CORRECTING,
        PAUSED,
    ]
    assert all(takeover("operator", mode) is PAUSED for mode in Mode if mode is not Mode.ACTIVE)
