"""``rlinf check model``: planted faults are named, and good folders have none."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.data.check_model import Samples, check, report
from rlinf_core.policies import make_policy, policy_kind, tiny
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

SCALE = (0.02, 0.02, 0.02)
CAMERAS = tuple(
    ArraySpec(name, (32, 32, 3), "uint8", "", (0.0,), (255.0,), f"camera/{name}/image", "image")
    for name in ("front", "wrist")
)
ACTION = ActionSpec("tcp_delta", ("dx", "dy", "dz"), SCALE, ("m",) * 3)
SPEC = StationSpec((ArraySpec("pose", (3,)), *CAMERAS), ACTION, 10.0, "push the cube")
KINDS = ("pi0", "pi05", "smolvla")


def samples(seed=0, **changes):
    """Of an arm that wanders: its steps, and where they lead."""
    random = np.random.default_rng(seed)
    actions = random.normal(0.0, 0.006, (400, 3)).clip(-0.02, 0.02)
    states = np.array([0.5, 0.0, 0.2]) + 0.3 * np.cumsum(actions[::-1], axis=0)
    first = [
        {"pose": states[0].astype(np.float32)}
        | {camera.name: random.integers(0, 255, (32, 32, 3), np.uint8) for camera in CAMERAS}
    ]
    shapes = {camera.name: camera.shape for camera in CAMERAS}
    return replace(
        Samples(10.0, states, actions, first, actions[:50], shapes, ["push the cube"]), **changes
    )


def statistics(folder, data, name="stats.json", **changes):
    """Of the data, as a data set has them; ``changes`` replace those of a feature."""
    features = {"observation.state": data.states, "action": data.actions}
    numbers = {
        feature: {
            "mean": values.mean(0).tolist(),
            "std": values.std(0).tolist(),
            "min": values.min(0).tolist(),
            "max": values.max(0).tolist(),
            "q01": np.quantile(values, 0.01, 0).tolist(),
            "q99": np.quantile(values, 0.99, 0).tolist(),
        }
        for feature, values in features.items()
    }
    for feature, change in changes.items():
        key = {"state": "observation.state"}.get(feature, feature)
        numbers[key] = {
            stat: change(np.array(values)).tolist() for stat, values in numbers[key].items()
        }
    (folder / name).write_text(json.dumps(numbers))
    return str(folder / name)


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    return request.param, tiny.write(
        request.param, tmp_path_factory.mktemp("tiny") / request.param, horizon=2
    )


def faults(kind, data, spec=SPEC, features=None, **config):
    name, folder = kind
    part = policy_kind(name)
    before = (folder / "config.json").read_text()
    if features:
        (folder / "config.json").write_text(
            json.dumps(
                json.loads(before)
                | {
                    "input_features": {
                        f"observation.images.{camera}": {"type": "VISUAL", "shape": [3, 32, 32]}
                        for camera in features
                    }
                }
            )
        )
    try:
        settings = part.Config(
            **{"checkpoint": str(folder), "horizon": 2, "flow_steps": 10} | config
        )
        rows = list(check(lambda: make_policy(spec, settings).eval(), spec, data, folder))
    finally:
        (folder / "config.json").write_text(before)
    assert json.loads(report(rows))["checks"] == len(rows)
    # random weights answer slowly on a busy machine, and where they like
    return [row.name for row in rows if not row.passed and row.name != "latency"]


@pytest.mark.parametrize("seed", range(7))
def test_a_good_folder_has_no_fault(kind, seed, tmp_path):
    data = samples(seed)
    given = {"statistics": statistics(tmp_path, data)} if seed % 2 else {}
    assert faults(kind, data, features=["front", "wrist"] if seed % 3 else None, **given) == []


def absolute(data):
    return replace(data, actions=data.states + 0.001, chunk=data.states[:50] + 0.001)


# fault: (changed data, changed specs, changed statistics, changed config, the check that names it)
PLANTED = {
    "rate": (lambda d: replace(d, hz=30.0), {}, {}, {}, "rate"),
    "slow rate": (lambda d: replace(d, hz=5.0), {}, {}, {}, "rate"),
    "camera of another size": (
        lambda d: replace(d, cameras={**d.cameras, "wrist": (48, 64, 3)}),
        {},
        {},
        {},
        "cameras",
    ),
    "no such camera": (lambda d: replace(d, cameras={"front": (32, 32, 3)}), {}, {}, {}, "cameras"),
    "cameras in another order": (None, {}, {}, {"features": ["wrist", "front"]}, "camera order"),
    "fewer cameras": (None, {}, {}, {"features": ["front"]}, "camera order"),
    "more numbers of state": (
        lambda d: replace(d, states=np.pad(d.states, ((0, 0), (0, 1)))),
        {},
        {},
        {},
        "sizes",
    ),
    "more numbers of an action": (
        lambda d: replace(d, actions=np.pad(d.actions, ((0, 0), (0, 4)))),
        {},
        {},
        {},
        "sizes",
    ),
    "NaN in a state": (
        lambda d: replace(d, states=np.where(np.arange(3) == 1, np.nan, d.states)),
        {},
        {},
        {},
        "finite data",
    ),
    "state in millimetres": (
        lambda d: replace(d, states=1000.0 * d.states),
        {},
        {"state": lambda x: x},
        {},
        "state statistics",
    ),
    "state in another order": (
        lambda d: replace(d, states=d.states[:, ::-1].copy()),
        {},
        {"state": lambda x: x},
        {},
        "state statistics",
    ),
    "state from a wider data set": (
        None,
        {},
        {"state": lambda x: 1000.0 * x},
        {},
        "state statistics",
    ),
    "actions in millimetres": (
        lambda d: replace(d, actions=1000.0 * d.actions),
        {},
        {},
        {},
        "action statistics",
    ),
    "actions in kilometres": (
        lambda d: replace(d, actions=0.001 * d.actions),
        {},
        {},
        {},
        "action statistics",
    ),
    "statistics of LIBERO": (None, {}, {"action": lambda x: 50.0 * x}, {}, "loads"),
    "statistics far too narrow": (
        None,
        {},
        {"action": lambda x: 0.02 * x},
        {},
        "action statistics",
    ),
    "positions for steps": (
        absolute,
        {"action": replace(ACTION, scale=(0.6,) * 3)},
        {},
        {},
        "delta or absolute",
    ),
    "horizon": (None, {}, {}, {"horizon": 8}, "loads"),
    "short episodes": (lambda d: replace(d, chunk=d.chunk[:1]), {}, {}, {}, "horizon"),
    "no sentence": (lambda d: replace(d, sentences=[""]), {"instruction": ""}, {}, {}, "prompt"),
    "another sentence": (None, {"instruction": "pull"}, {}, {}, "prompt"),
    "a long sentence": (
        lambda d: replace(d, sentences=["push " * 24]),
        {"instruction": ""},
        {},
        {"tokens": 60},
        "prompt",
    ),
}


@pytest.fixture(scope="module")
def pi05(tmp_path_factory):
    return "pi05", tiny.write("pi05", tmp_path_factory.mktemp("tiny") / "pi05", horizon=2)


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_fault_is_named(planted, tmp_path, pi05):
    change, spec, changed_statistics, config, row = PLANTED[planted]
    data = samples()
    given = (
        {"statistics": statistics(tmp_path, data, **changed_statistics)}
        if changed_statistics
        else {}
    )
    got = faults(pi05, change(data) if change else data, replace(SPEC, **spec), **config, **given)
    assert row in got, got


def test_a_slow_policy_and_one_that_answers_nan_are_named(kind, monkeypatch):
    name, folder = kind
    part, data = policy_kind(name), samples()
    policy = make_policy(SPEC, part.Config(checkpoint=str(folder), horizon=2)).eval()
    clock = iter(np.arange(0.0, 1000.0, 0.5))
    monkeypatch.setattr("rlinf_core.data.check_model.time.monotonic", lambda: next(clock))
    rows = {row.name: row for row in check(lambda: policy, SPEC, data, folder)}
    assert not rows["latency"].passed
    assert "a chunk in 500 ms, and 200 ms are available until the next one" in rows["latency"].text
    act = policy.act
    monkeypatch.setattr(
        policy,
        "act",
        lambda *inputs: replace(chunk := act(*inputs), actions=chunk.actions * torch.nan),
    )
    rows = {row.name: row for row in check(lambda: policy, SPEC, data, folder)}
    assert not rows["first command"].passed and not rows["replay"].passed
