"""Conversions between the interlock core's types and the messages of its topics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import Wrench
from rlinf_msgs.msg import ActionChunk, Applied, SafetyEvent, SafetyState

from rlinf_core import interlock as core
from rlinf_core.interlock.types import FULL_ACTION, ActionSlice
from rlinf_ros.conversions import set_stamp, to_ns, to_stamp

LEVELS = {core.Mode.FAULT: DiagnosticStatus.ERROR, core.Mode.HOLD: DiagnosticStatus.WARN}


def to_chunk(message: ActionChunk, role: str, rows: ActionSlice = FULL_ACTION) -> core.Chunk:
    """Return the core's chunk, with the authority of its topic.

    The message's own source is only a label.

    A wrong size becomes an empty plan, which the core refuses. ``rows`` are this arm's. An
    operator's chunk that announces no action and executes none is a release.
    """
    data, dim = message.data.tolist(), message.dim
    fits = dim > 0 and len(data) == dim * message.horizon and dim == (rows.total or dim)
    actions = tuple([tuple(data[i : i + dim]) for i in range(0, len(data), dim)]) if fits else ()
    return core.Chunk(
        role,
        message.session,
        message.seq,
        message.policy_version,
        to_ns(message.observation_stamp),
        message.dt,
        message.control_mode,
        rows.part(actions),
        message.execute,
        message.header.frame_id,
        tuple(message.joint_names),
        actions if rows.total else (),
        is_release=role == core.OPERATOR
        and not (data or dim or message.horizon or message.execute),
    )


def refused_chunk(role: str, control_mode: str) -> core.Chunk:
    """Return an unreadable command as a chunk that the core refuses by its size."""
    return core.Chunk(role, "", 0, -1, 0, 0.1, control_mode, ())


def norms(wrench: Wrench) -> tuple[float, float]:
    """Return the norms of force [N] and torque [Nm]."""
    f, t = wrench.force, wrench.torque
    return math.hypot(f.x, f.y, f.z), math.hypot(t.x, t.y, t.z)


def applied(record: core.Applied, limits_hash: str, rows: ActionSlice = FULL_ACTION) -> Applied:
    """Return one action's outcome as a message; the parts of other arms are zero."""
    message = Applied(
        source=record.source,
        session=record.session,
        seq=record.seq,
        index=record.index,
        policy_version=record.policy_version,
        observation_stamp=to_stamp(record.observation_stamp_ns),
        requested=list(record.requested),
        executed=list(rows.embed(record.executed)),
        limits=list(record.limits),
        limits_hash=limits_hash,
    )
    set_stamp(message.header.stamp, record.start_ns)
    return message


def safety_event(
    event: core.Event, output: core.Output, tick: int, limits_hash: str
) -> SafetyEvent:
    """Return one intervention as a message, with the command sent instead (S20)."""
    message = SafetyEvent(
        kind=event.kind,
        cause=event.cause,
        tick=tick,
        source=event.source,
        session=event.session,
        seq=max(event.seq, 0),
        requested=list(event.requested),
        commanded=list(output.target or output.joints),
        limits_hash=limits_hash,
    )
    set_stamp(message.header.stamp, event.now_ns)
    return message


def safety_state(
    output: core.Output, counts: Counter[str], limits_hash: str, now_ns: int
) -> SafetyState:
    """Return the interlock's state as a message: commander, or cause of a hold, and counts."""
    message = SafetyState(
        state=int(output.mode),
        source=output.source,
        cause=output.cause,
        limits_hash=limits_hash,
        **{name: counts[name] for name in ("ticks", "holds", "refused", "dropped", "limited")},
    )
    set_stamp(message.header.stamp, now_ns)
    return message


def peer_state(output: core.Output, now_ns: int) -> SafetyState:
    """Return the message for the other arms' interlocks at each tick (S27).

    Its ``cause`` is the reason why this arm could not move now.
    """
    stopped = (
        output.mode.name.lower() if output.mode in (core.Mode.DISARMED, core.Mode.FAULT) else ""
    )
    message = SafetyState(state=int(output.mode), cause=stopped or output.blocked)
    set_stamp(message.header.stamp, now_ns)
    return message


def diagnostics(
    name: str,
    state: core.State,
    counts: Mapping[str, float],
    times_ms: dict[str, Iterable[float]],
    limits_hash: str,
) -> DiagnosticArray:
    """Return the message for /diagnostics: counts, rates, and p50, p99, maximum and number of
    samples of each time series.
    """
    values: dict[str, float] = dict(counts)
    for series, times in times_ms.items():
        ranked = sorted(times)
        if ranked:
            values |= {
                f"{series}_p50_ms": ranked[len(ranked) // 2],
                f"{series}_p99_ms": ranked[int(0.99 * len(ranked))],
                f"{series}_worst_ms": ranked[-1],
                f"{series}_samples": len(ranked),
            }
    return DiagnosticArray(
        status=[
            DiagnosticStatus(
                name=name,
                hardware_id=limits_hash,
                level=LEVELS.get(state.mode, DiagnosticStatus.OK),
                message=f"{state.mode.name} {state.cause}".strip(),
                values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
            )
        ]
    )
