"""Recordings for tests, made of real CDR messages without ROS."""

import numpy as np

from rlinf_core.episodes.messages import typestore

NS = 1_000_000_000


def raw_messages(
    spec,
    episode_id="a-1",
    steps=5,
    success=True,
    mode="train",
    start=0.0,
    sources=None,
    leave=(),
    change=None,
    failure=False,
    store=None,
    chunk=None,
):
    """Return the messages of an episode of ``steps`` transitions as (topic, type, ns, CDR).

    Args:
        leave: names of messages to leave out (``ended``, ``applied``, the third ``timestep``).
        change: may change each message; gets its topic, its number on that topic and the message.
        store: a type store with other definitions of the messages than today's.
        chunk: horizon and number of played actions; records chunks of the policy with these.
    """
    store = store or typestore()
    types = store.types
    stamp_type, header_type = types["builtin_interfaces/msg/Time"], types["std_msgs/msg/Header"]
    numbers, rows = {}, []

    def put(topic, type_name, ns, **fields):
        kind = types[f"rlinf_msgs/msg/{type_name}"]
        fields = {
            name: value for name, value in fields.items() if name in kind.__dataclass_fields__
        }
        message = kind(header=header_type(stamp_type(ns // NS, ns % NS), ""), **fields)
        numbers[topic] = numbers.get(topic, -1) + 1
        if change:
            change(topic, numbers[topic], message)
        raw = bytes(store.serialize_cdr(message, message.__msgtype__))
        rows.append((f"/station/{topic}", message.__msgtype__, ns, raw))

    event = dict(
        episode_id=episode_id,
        station="a",
        mode=mode,
        seed=3,
        episode_return=float(success),
        policy_version=4,
        spec_hash=spec.hash,
        detail="",
    )
    put(
        "episode",
        "EpisodeEvent",
        0,
        kind=0,
        steps=0,
        success=False,
        failure=False,
        truncated=False,
        **event,
    )
    horizon, execute = chunk or (1, 1)
    vector, image = types["rlinf_msgs/msg/NamedVector"], types["sensor_msgs/msg/Image"]
    for k in range(steps + 1):
        ns, last = k * NS // 10, k == steps
        vectors = [
            vector(item.name, np.full(item.size, start + k, np.float32)) for item in spec.vectors
        ]
        images = [
            image(
                header_type(stamp_type(0, 0), item.name),
                *item.shape[:2],
                "rgb8",
                0,
                3 * item.shape[1],
                np.full(item.size, k, np.uint8),
            )
            for item in spec.images
        ]
        if "timestep" not in leave or k != 2:
            put(
                "timestep",
                "TimeStep",
                ns,
                step_type=2 if last else int(k > 0),
                reward=float(last and success),
                discount=0.0 if last and (success or failure) else 1.0,
                terminated=last and (success or failure),
                truncated=last and not (success or failure),
                success=last and success,
                failure=last and failure,
                episode_id=episode_id,
                step_index=k,
                mode=mode,
                instruction="do it",
                vectors=vectors,
                images=images,
            )
        if chunk and not last and k % execute == 0:
            put(
                "policy/action",
                "ActionChunk",
                ns,
                source="policy",
                session="s",
                seq=k // execute + 1,
                policy_version=4,
                observation_stamp=stamp_type(ns // NS, ns % NS),
                dt=0.1,
                control_mode="tcp_delta",
                joint_names=[],
                horizon=horizon,
                dim=3,
                execute=execute,
                data=np.zeros(3 * horizon),
                drawn_dim=3,
                drawn=np.arange(3 * horizon, dtype=np.float32) / 7 + k,
                log_probs=-np.arange(horizon, dtype=np.float32) / 7 - k,
            )
        if not last and "applied" not in leave:
            put(
                "applied",
                "Applied",
                ns,
                source=(sources or {}).get(k, "policy"),
                session="s",
                seq=k // execute + 1,
                index=k % execute,
                policy_version=4,
                observation_stamp=stamp_type(0, 0),
                requested=np.array([0.02, 0.0, 0.001 * k]),
                executed=np.array([0.01, 0.0, 0.001 * k]),
                limits=["speed"] if k == 1 else [],
                limits_hash="beef",
            )
    if "ended" not in leave:
        put(
            "episode",
            "EpisodeEvent",
            steps * NS // 10,
            kind=1,
            steps=steps,
            success=success,
            failure=failure,
            truncated=not (success or failure),
            **event,
        )
    return rows


def write_raw(spool, episode_id, messages):
    """Write messages through a spool writer; returns the writer, not yet closed."""
    writer = spool.open_episode(episode_id)
    for topic, kind, ns, raw in messages:
        writer.write(topic, kind, ns, raw)
    return writer


def record(spool, spec, episode_id="a-1", **how):
    """Write an episode as ``raw_messages`` makes it; returns the writer, not yet closed."""
    return write_raw(spool, episode_id, raw_messages(spec, episode_id, **how))
