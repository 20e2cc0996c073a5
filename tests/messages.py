"""Recordings for tests, made of real CDR messages without ROS."""

import numpy as np

from rlinf_core.episodes.messages import typestore

NS = 1_000_000_000


def record(spool, spec, episode_id="a-1", steps=5, success=True, mode="train", start=0.0, sources=None, leave=()):
    """Write an episode of ``steps`` transitions through a spool writer; returns the writer, not yet closed."""
    store = typestore()
    types = store.types
    stamp_type, header_type = types["builtin_interfaces/msg/Time"], types["std_msgs/msg/Header"]

    def header(ns):
        return header_type(stamp_type(ns // NS, ns % NS), "")

    def put(writer, topic, type_name, ns, **fields):
        message = types[f"rlinf_msgs/msg/{type_name}"](header=header(ns), **fields)
        name = f"rlinf_msgs/msg/{type_name}"
        writer.write(f"/station/{topic}", name, ns, store.serialize_cdr(message, name))

    writer = spool.open_episode(episode_id)
    event = dict(episode_id=episode_id, station="a", mode=mode, seed=3, episode_return=float(success),
                 policy_version=4, spec_hash=spec.hash, detail="")
    put(writer, "episode", "EpisodeEvent", 0, kind=0, steps=0, success=False, **event)
    vector, image = types["rlinf_msgs/msg/NamedVector"], types["sensor_msgs/msg/Image"]
    for k in range(steps + 1):
        ns, last = k * NS // 10, k == steps
        vectors = [vector(item.name, np.full(item.size, start + k, np.float32)) for item in spec.vectors]
        images = [image(header_type(stamp_type(0, 0), item.name), *item.shape[:2], "rgb8", 0, 3 * item.shape[1],
                        np.full(item.size, k, np.uint8)) for item in spec.images]
        if "timestep" not in leave or k != 2:
            put(writer, "timestep", "TimeStep", ns, step_type=2 if last else int(k > 0), reward=float(last and success),
                discount=0.0 if last and success else 1.0, episode_id=episode_id, step_index=k, mode=mode,
                instruction="do it", vectors=vectors, images=images)
        if not last:
            put(writer, "applied", "Applied", ns, source=(sources or {}).get(k, "policy"), session="s", seq=k + 1,
                index=0, policy_version=4, observation_stamp=stamp_type(0, 0), requested=np.array([0.02, 0.0, 0.001 * k]),
                executed=np.array([0.01, 0.0, 0.001 * k]), limits=["speed"] if k == 1 else [], limits_hash="beef")
    if "ended" not in leave:
        put(writer, "episode", "EpisodeEvent", steps * NS // 10, kind=1, steps=steps, success=success, **event)
    return writer
