"""``rlinf check model``: planted faults are named, and good folders have none."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.core.errors import EpisodeError, PolicyFileError
from rlinf_core.data.check_model import (
    CheckResult,
    Samples,
    _check_range,
    check_policy,
    read_samples,
    to_json,
)
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.base import ActionChunk
from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from tests.messages import record

SCALE = (0.02, 0.02, 0.02)
CAMERAS = tuple(
    ArraySpec(name, (32, 32, 3), "uint8", "", (0.0,), (255.0,), f"camera/{name}/image", "image")
    for name in ("front", "wrist")
)
ACTION = ActionSpec("tcp_delta", ("dx", "dy", "dz"), SCALE, ("m",) * 3)
SPEC = StationSpec((ArraySpec("pose", (3,)), *CAMERAS), ACTION, 10.0, "push the cube")
KINDS = ("pi0", "pi05", "smolvla")


def samples(seed=0, **changes):
    """Return the steps of an arm that wanders, and its positions."""
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
    """Return the statistics of the data; ``changes`` replace those of a feature."""
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
    return request.param, tiny_checkpoint.write(
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
        rows = list(check_policy(lambda: make_policy(spec, settings).eval(), spec, data, folder))
    finally:
        (folder / "config.json").write_text(before)
    assert json.loads(to_json(rows))["checks"] == len(rows)
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
    return "pi05", tiny_checkpoint.write(
        "pi05", tmp_path_factory.mktemp("tiny") / "pi05", horizon=2
    )


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
    monkeypatch.setattr(
        "rlinf_core.data.check_model.time", SimpleNamespace(monotonic=lambda: next(clock))
    )  # other threads ask the real clock
    rows = {row.name: row for row in check_policy(lambda: policy, SPEC, data, folder)}
    assert not rows["latency"].passed
    assert "a chunk in 500 ms, and 200 ms are available until the next one" in rows["latency"].text
    act = policy.act
    monkeypatch.setattr(
        policy,
        "act",
        lambda *inputs: replace(chunk := act(*inputs), actions=chunk.actions * torch.nan),
    )
    rows = {row.name: row for row in check_policy(lambda: policy, SPEC, data, folder)}
    assert not rows["first command"].passed and not rows["replay"].passed


class Still:
    """A policy that answers with a chunk of four equal actions, of which it plays two."""

    device, needs_instruction = torch.device("cpu"), False

    def __init__(self, action=(0.5, 0.0, -1.0), horizon=4):
        self.spec, self.action, self.observations = SPEC, action, []
        self.config = SimpleNamespace(kind="still", horizon=horizon, executed=2, statistics="")

    def act(self, observation, explore, generator):
        self.observations.append((observation, explore, generator.initial_seed()))
        actions = torch.tensor([[self.action] * self.config.horizon])
        return ActionChunk(actions, 2, actions)


def rows_of(policy, folder, data=None, spec=SPEC):
    data = data or samples()
    return {row.name: row for row in check_policy(lambda: policy, spec, data, folder)}


def one_step(step, frames=8, **changes):
    """An arm that makes the same step at each frame, along x alone."""
    actions = np.zeros((frames, 3))
    actions[:, 0] = step
    states = np.tile(np.array([[0.5, 0.0, 0.2]]), (frames, 1))
    return replace(samples(), actions=actions, states=states, chunk=actions, **changes)


def test_each_row_says_what_it_found(tmp_path, monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 10.3, 20.0, 20.1, 30.0, 30.15, 40.0, 40.12])
    monkeypatch.setattr(
        "rlinf_core.data.check_model.time", SimpleNamespace(monotonic=lambda: next(clock))
    )  # other threads ask the real clock
    policy, data = Still(), one_step(0.01)
    rows = rows_of(policy, tmp_path, data)
    assert all(row.passed for row in rows.values())
    assert {name: row.text for name, row in rows.items()} == {
        "rate": "expected 10 time steps per second (the station's), got data with 10",
        "cameras": "front, wrist",
        "camera order": "the checkpoint names no cameras",
        "sizes": "expected 3 numbers of state and 3 of an action (the station's), got data with 3 "
        "and 3",
        "loads": "still, chunks of 4, 2 actions of each are executed",
        "finite data": "8 time steps",
        "state statistics": "learned from the data",
        "action statistics": "the actions are in the task's units, in [-1, 1] of its largest steps",
        "delta or absolute": "no action is a position",
        "horizon": "expected episodes of 4 time steps or more (the chunk horizon), got a first one "
        "of 8",
        "prompt": "the policy reads none",
        "first command": "33 % of the first chunk's numbers are at the largest step; in the data "
        "0 %",
        "latency": "a chunk in 135 ms, and 200 ms are available until the next one",
        "replay": "mean distance of 0.333 largest steps from the recorded chunk, 0.167 for an arm "
        "at rest",
    }
    assert len(policy.observations) == 5
    for observation, explore, seed in policy.observations:
        assert observation.instruction == ("push the cube",) and (explore, seed) == (False, 0)
        assert observation.vectors.tolist() == data.first[0]["pose"][None].tolist()
        assert (observation.images["wrist"][0].numpy() == data.first[0]["wrist"]).all()
    assert (
        str(CheckResult("a", True, "b")) == "passed a: b"
        and str(CheckResult("a", False, "b")) == "FAULT a: b"
    )
    assert json.loads(to_json([*rows.values(), CheckResult("x", False, "y")])) == {
        "faults": ["x"],
        "checks": 15,
        "rows": {name: row.text for name, row in rows.items()} | {"x": "y"},
    }


def test_chunks_begin_in_turn_where_episodes_begin(tmp_path):
    data = samples()
    first = [data.first[0] | {"pose": np.full(3, float(index), np.float32)} for index in range(3)]
    policy = Still()
    rows_of(policy, tmp_path, replace(data, first=first, sentences=[]))
    assert [one[0].vectors[0, 0].item() for one in policy.observations] == [0, 1, 2, 0, 1]
    assert policy.observations[0][0].instruction == (SPEC.instruction,)


@pytest.mark.parametrize(
    "hz, passed", [(9.0, True), (11.0, True), (8.99, False), (11.01, False), (100.0, False)]
)
def test_a_rate_may_differ_by_a_tenth(tmp_path, hz, passed):
    row = rows_of(Still(), tmp_path, replace(samples(), hz=hz))["rate"]
    assert row.passed is passed and row.text.endswith(f"got data with {hz:.3g}")


@pytest.mark.parametrize(
    "cameras, text",
    [
        ({}, "expected front of 32x32, got none; wrist of 32x32, got none (the data has none)"),
        (
            {"front": (32, 32, 3), "wrist": (48, 64, 3)},
            "expected wrist of 32x32, got 48x64 (the data has front, wrist)",
        ),
    ],
)
def test_cameras_that_differ_are_named_with_their_sizes_and_nothing_is_played(
    tmp_path, cameras, text
):
    policy = Still()
    rows = rows_of(policy, tmp_path, replace(samples(), cameras=cameras))
    assert not rows["cameras"].passed and rows["cameras"].text == text
    assert list(rows)[-1] == "prompt" and not policy.observations


@pytest.mark.parametrize(
    "names, spec, passed, text",
    [
        (["wrist", "front"], SPEC, False, "expected wrist, front, the checkpoint's order, got front, wrist (station.observe_cameras)"),
        (["front", "wrist"], SPEC, True, "front as front, wrist as wrist"),
        (["top", "a\x1b"], SPEC, True, "front as top, wrist as a\\x1b"),
        (["top", "side", "a\x1b"], SPEC, False, "expected 3 cameras of the checkpoint's training (top, side, a\\x1b), got front, wrist (station.observe_cameras)"),
        (["wrist", "empty_camera_0", "front"], SPEC, False, "expected wrist, front, the checkpoint's order, got front, wrist (station.observe_cameras)"),
        (["top"], StationSpec(SPEC.observation[:1], ACTION, 10.0), False, "expected 1 cameras of the checkpoint's training (top), got none (station.observe_cameras)"),
        (["empty_camera_0"], SPEC, True, "the checkpoint names no cameras"),
    ],
)  # fmt: skip
def test_the_order_of_a_checkpoints_cameras_is_told(tmp_path, names, spec, passed, text):
    features = {f"observation.images.{name}": {} for name in names}
    config = {"input_features": {"observation.state": {}} | features}
    (tmp_path / "config.json").write_text(json.dumps(config))
    row = rows_of(Still(), tmp_path, spec=spec)["camera order"]
    assert (row.passed, row.text) == (passed, text)
    (tmp_path / "config.json").write_text("{}")
    row = rows_of(Still(), tmp_path, spec=spec)["camera order"]
    assert (row.passed, row.text) == (True, "the checkpoint names no cameras")


def test_nothing_follows_a_policy_that_cannot_be_made_or_data_of_another_size(tmp_path):
    def load():
        raise PolicyFileError("no such file")

    rows = list(check_policy(load, SPEC, samples(), tmp_path))
    assert [row.name for row in rows] == ["rate", "cameras", "camera order", "sizes", "loads"]
    assert not rows[-1].passed and rows[-1].text == "no such file"
    data = samples()
    for change, state, action in (
        ({"states": np.zeros((8, 4))}, 4, 3),
        ({"actions": np.zeros((8, 7))}, 3, 7),
    ):
        rows = rows_of(Still(), tmp_path, replace(data, **change))
        assert list(rows)[-1] == "loads" and not rows["sizes"].passed
        assert rows["sizes"].text.endswith(f"got data with {state} and {action}")


@pytest.mark.parametrize(
    "names, text",
    [
        (("states",), "NaN or Inf in state"),
        (("actions",), "NaN or Inf in action"),
        (("states", "actions"), "NaN or Inf in state and action"),
    ],
)
def test_numbers_that_are_none_are_named(tmp_path, names, text):
    data = samples()
    for name in names:
        values = getattr(data, name).copy()
        values[3, 1] = np.inf
        data = replace(data, **{name: values})
    with np.errstate(invalid="ignore"):
        row = rows_of(Still(), tmp_path, data)["finite data"]
    assert (row.passed, row.text) == (False, text)


@pytest.mark.parametrize(
    "step, text",
    [
        (
            0.0001,
            "expected steps of up to 0.02 m, got none beyond 0.0001. Are they in other units?",
        ),
        (0.0, "expected steps of up to 0.02 m, got none beyond 0. Are they in other units?"),
        (
            -3.0,
            "expected 'dx' within 0.02 m in both directions (a step of the station), got -3. Are "
            "its actions of another kind, or in other units? 3 largest steps: the data set looks "
            "like that of a faster arm",
        ),
    ],
)
def test_actions_in_other_units_are_told(tmp_path, step, text):
    row = rows_of(Still(), tmp_path, one_step(step))["action statistics"]
    assert not row.passed and row.text == text
    assert rows_of(Still(), tmp_path, one_step(0.0002))["action statistics"].passed


def test_a_number_that_follows_a_state_is_a_position(tmp_path):
    def row_of(actions, states):
        data = replace(samples(), actions=actions, states=states)
        return rows_of(Still(), tmp_path, data)["delta or absolute"]

    path = 0.01 * np.sin(np.arange(40) / 5)
    still = np.zeros(40)
    states = np.stack([still + 0.5, path, still], axis=1)
    positions = np.stack([still, still, path + 0.001], axis=1)
    row = row_of(positions, states)
    assert not row.passed and row.text == (
        "expected steps of 'dz', got numbers that follow a state. The actions are positions and "
        "would be played as steps"
    )
    assert not row_of(positions[:, ::-1], states).passed
    assert row_of(-positions, states).passed
    assert row_of(np.roll(positions, 6, axis=0), states).passed
    assert row_of(positions, states + 1.0).passed, "far from the state"
    assert row_of(positions, 0.0 * states).passed and row_of(0.0 * positions + 0.01, states).passed


def test_a_first_episode_is_as_long_as_a_chunk(tmp_path):
    for frames, passed in ((3, False), (4, True)):
        rows = rows_of(Still(), tmp_path, one_step(0.01, frames))
        assert rows["horizon"].passed is passed and rows["horizon"].text.endswith(f"of {frames}")
        assert rows["replay"].text.startswith("mean distance of 0.333 largest steps")


@pytest.mark.parametrize(
    "action, step, passed, text",
    [
        ((1.0, 0.999, 0.5), 0.01, False, "67 % of the first chunk's numbers are at the largest step; in the data 0 %"),
        ((1.0, 0.9, 0.5), 0.01, True, "33 % of the first chunk's numbers are at the largest step; in the data 0 %"),
        ((-1.0, 1.0, 0.5), 0.02, True, "67 % of the first chunk's numbers are at the largest step; in the data 33 %"),
        ((-1.0, 1.0, 1.0), -0.02, False, "100 % of the first chunk's numbers are at the largest step; in the data 33 %"),
        ((float("nan"), 0.0, 0.0), 0.01, False, "expected finite actions, got NaN or Inf"),
    ],
)  # fmt: skip
def test_a_first_chunk_at_the_largest_step_is_told(tmp_path, action, step, passed, text):
    rows = rows_of(Still(action), tmp_path, one_step(step))
    assert (rows["first command"].passed, rows["first command"].text) == (passed, text)
    assert rows["replay"].passed is bool(np.isfinite(action).all())


@pytest.mark.parametrize(
    "sentences, task, passed, text",
    [
        (["push", "pull"], "pull", True, "2 sentences"),
        ([], "pull", True, "1 sentences"),
        (["push"], "", True, "1 sentences"),
        (["push", " "], "push", False, "expected an instruction in each episode, got none in some. This policy needs instructions"),
        ([], "", False, "expected an instruction in each episode, got none in some. This policy needs instructions"),
        (["push\x1b" + "x" * 80], "pull" * 20, False, f"expected one of the data's sentences (push\\x1b{'x' * 52}), got the task's '{'pull' * 15}'"),
    ],
)  # fmt: skip
def test_a_policy_with_instructions_gets_those_of_the_data(tmp_path, sentences, task, passed, text):
    policy, spec = Still(), replace(SPEC, instruction=task)
    policy.needs_instruction, policy.spec = True, spec
    rows = rows_of(policy, tmp_path, replace(samples(), sentences=sentences), spec)
    assert (rows["prompt"].passed, rows["prompt"].text) == (passed, text)
    begins_empty = not (sentences or [task])[0].strip()
    assert bool(policy.observations) is not begins_empty
    assert ("replay" in rows) is not begins_empty


def test_tokens_of_a_long_sentence_are_counted(tmp_path, pi05):
    texts = {}
    for tokens, words in ((60, 1), (60, 24), (200, 1)):
        settings = policy_kind("pi05").Config(
            checkpoint=str(pi05[1]), horizon=2, flow_steps=10, tokens=tokens
        )
        policy = make_policy(SPEC, settings).eval()
        data = replace(samples(), sentences=["push the cube", "push " * words])
        row = rows_of(policy, tmp_path, data, replace(SPEC, instruction=""))["prompt"]
        used = max(len(policy.prompt_tokens(sentence)) for sentence in data.sentences)
        texts[tokens, words] = row.passed, row.text, used
    passed, text, used = texts[60, 24]
    assert (passed, used > 60) == (False, True)
    assert text == f"{used} tokens of 60 (policy.tokens); longer instructions are cut"
    assert texts[200, 1][:2] == (True, "2 sentences")


def column(*values):
    return np.array(values)[:, None]


@pytest.mark.parametrize(
    "numbers, varies, passed, text",
    [
        (np.zeros((9, 0)), np.zeros(0), True, "at most 0.0 % beyond 5"),
        (np.linspace(-5, 5, 40)[:, None], np.ones(1), True, "at most 0.0 % beyond 5"),
        (column(*[1.0, -1.0] * 19, -6.0, 6.0), np.ones(1), True, "at most 5.0 % beyond 5"),
        (
            np.hstack([column(*[1.0, -1.0] * 5), column(*[1.0] * 9, -6.0)]),
            np.ones(2),
            False,
            "expected numbers within 5 for the network, got 10 % of 'b' beyond it. Are the "
            "statistics from another data set, in other units or in another order?",
        ),
        (
            np.hstack([column(*[0.01, -0.01] * 5), column(*[0.02, -0.02] * 5)]),
            np.ones(2),
            False,
            "expected varying numbers for the network, got nearly constant ones for 'a'. Are the "
            "statistics from a wider data set, or from one in which it never changed?",
        ),
        (column(*[0.0201, -0.0201] * 5), np.ones(1), True, "at most 0.0 % beyond 5"),
        (column(*[0.0] * 10), np.zeros(1), True, "at most 0.0 % beyond 5"),
    ],
)
def test_numbers_fill_the_networks_range(numbers, varies, passed, text):
    row = _check_range("x", numbers, ["a", "b"], 5.0, varies)
    assert (row.name, row.passed, row.text) == ("x", passed, text)


def test_statistics_are_judged_in_the_networks_range(tmp_path, pi05):
    data = samples()

    def statistics_rows(**changes):
        given = statistics(tmp_path, data, **changes)
        settings = policy_kind("pi05").Config(checkpoint=str(pi05[1]), horizon=2, statistics=given)
        rows = rows_of(make_policy(SPEC, settings).eval(), tmp_path, data)
        return rows["state statistics"], rows["action statistics"]

    state, action = statistics_rows()
    assert (state.passed, state.text) == (True, "at most 0.0 % beyond 1.5")
    assert (action.passed, action.text) == (True, "at most 0.0 % beyond 5")
    state, action = statistics_rows(state=lambda x: x + 9.0)
    assert not state.passed and state.text.startswith(
        "expected numbers within 1.5 for the network, got 100 % of 'pose.0' beyond it. Are"
    )
    _, action = statistics_rows(action=lambda x: 0.02 * x)
    assert not action.passed and "within 5 for the network, got 8" in action.text


def test_samples_of_recordings_are_read_in_their_order(tmp_path, task, capsys):
    spec = task.with_images({"front": (4, 6)}).spec
    spool = Spool(tmp_path / "spool", min_free_mb=0)

    def words(topic, _, message):
        if topic == "timestep":
            message.instruction = "push" if message.episode_id == "a-2" else "do it"

    record(spool, spec, "a-1", steps=5, change=words).close()
    record(spool, spec, "a-2", steps=3, start=9.0, change=words).close()
    record(spool, spec, "a-3").abort()
    data = read_samples(spool.root, spec)
    assert data.hz == pytest.approx(10.0) and data.sentences == ["do it", "push"]
    assert data.states.dtype == np.float64 == data.actions.dtype
    values = [0, 1, 2, 3, 4, 9, 10, 11]
    assert data.states.tolist() == [[float(value)] * 12 for value in values]
    steps = [0, 1, 2, 3, 4, 0, 1, 2]
    assert data.actions == pytest.approx(np.array([[0.02, 0.0, 0.001 * step] for step in steps]))
    assert np.array_equal(data.chunk, data.actions[:5])
    assert data.cameras == {"front": (4, 6, 3)}
    assert [one["force"][0] for one in data.first] == [0.0, 9.0]
    assert data.first[1]["front"].shape == (4, 6, 3)
    assert "a-3" in capsys.readouterr().out
    blind = StationSpec((ArraySpec("other", (2,)),), spec.action, 10.0)
    assert read_samples(spool.root, blind).states.shape == (8, 0)
    with pytest.raises(EpisodeError, match="none: expected a recording"):
        read_samples(tmp_path / "none", spec)


def test_twenty_episodes_are_read_and_the_rate_is_that_of_the_first(tmp_path, task):
    spool = Spool(tmp_path / "spool", min_free_mb=0)
    for number in range(21):
        record(spool, task.spec, f"a-{number:02d}", steps=2, start=float(number)).close()
    data = read_samples(spool.root, task.spec)
    assert len(data.first) == 20 and len(data.actions) == 40 and data.first[-1]["force"][0] == 19.0
