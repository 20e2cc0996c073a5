"""A failure monitor: its bound on false alarms, early failures, its file and its command."""

import json

import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.cli.monitor import judge
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.policies import make_policy
from rlinf_core.policies.monitor import Monitor, Steps, fit
from rlinf_core.policies.serialization import policy_name, save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.station import learned_spec
from rlinf_core.trainer.folder import keep_recipe

LIMIT = 40


def episode(random, fails):
    """A point on its way to the origin; one that fails turns aside after some steps."""
    at = random.uniform(-1, 1, 2)
    vectors = []
    actions = []
    turns = int(random.integers(2, 10)) if fails else LIMIT
    for step in range(LIMIT):
        towards = -at / max(np.linalg.norm(at), 1e-6)
        if step >= turns:
            towards = np.array([towards[1], -towards[0]])
        action = np.clip(towards + 0.2 * random.normal(size=2), -1, 1)
        vectors.append(at)
        actions.append(action)
        at = at + 0.08 * action
        if np.linalg.norm(at) < 0.1:
            return Steps(np.array(vectors), np.array(actions), True)
    return Steps(np.array(vectors), np.array(actions), False)


def episodes(seed, good, bad):
    random, result = np.random.default_rng(seed), []
    while good or bad:
        one = episode(random, bad > 0 and random.random() < bad / (good + bad))
        if (one.success and good) or (not one.success and bad):
            result.append(one)
            good, bad = good - one.success, bad - (not one.success)
    return result


@pytest.fixture(scope="module")
def monitor():
    return fit(episodes(0, 180, 60), 0.1, "abc")


def test_false_alarms_stay_within_the_bound_and_failures_are_found_before_half_time(monitor):
    """The bound holds on average over fits, as conformal prediction promises."""
    figures = [
        judge(fit(episodes(seed, 180, 60), 0.1), episodes(100 + seed, 150, 50)) for seed in range(3)
    ]
    assert np.mean([one["false_alarms"] for one in figures]) <= 0.12
    assert np.mean([one["found_early"] for one in figures]) >= 0.7, figures


def test_without_failures_the_bound_holds_too():
    figures = [
        judge(fit(episodes(10 + seed, 180, 0), 0.1), episodes(200 + seed, 150, 50))
        for seed in range(3)
    ]
    assert np.mean([one["false_alarms"] for one in figures]) <= 0.12
    assert np.mean([one["found"] for one in figures]) >= 0.5


def test_a_score_knows_nothing_of_what_comes_later(monitor):
    one = episodes(5, 0, 1)[0]
    part = Steps(one.vectors[:12], one.actions[:12], False)
    np.testing.assert_array_equal(monitor.scores(part), monitor.scores(one)[:12])
    watch = monitor.watch()
    alarms = [watch.alarmed(*step) for step in zip(one.vectors, one.actions, strict=True)]
    assert alarms.index(True) == monitor.alarm(one)


def test_the_threshold_is_the_conformal_quantile_by_hand(monitor):
    """All but the (1 - alpha) (n + 1)-th highest peak of n calibration episodes are below it."""
    random = np.random.default_rng(0)
    everything = episodes(0, 180, 60)
    successes = [
        everything[index] for index in random.permutation(240) if everything[index].success
    ]
    alarms = sum(monitor.alarm(one) >= 0 for one in successes[2::3])
    beyond = 60 - int(np.ceil(0.95 * 61))  # by the score, and as many by the time that it takes
    assert beyond <= alarms <= 2 * beyond
    assert monitor.threshold[-1] == -np.inf and np.isfinite(monitor.threshold[:-1]).all()
    lengths = sorted(len(one.vectors) for one in successes[2::3])
    assert len(monitor.threshold) - 1 == lengths[-1 - beyond]


def test_its_file_and_what_it_does_not_fit(monitor, tmp_path):
    monitor.save(tmp_path / "m.safetensors")
    one, loaded = episodes(6, 1, 0)[0], Monitor.load(tmp_path / "m.safetensors", "abc")
    np.testing.assert_array_equal(loaded.scores(one), monitor.scores(one))
    with pytest.raises(RecipeError, match="expected one of specs other"):
        Monitor.load(tmp_path / "m.safetensors", "other")
    (tmp_path / "n.safetensors").write_bytes(b"nothing")
    with pytest.raises(RecipeError, match="expected a file of rlinf monitor fit"):
        Monitor.load(tmp_path / "n.safetensors")
    with pytest.raises(
        RlinfError, match="expected at least 117 successful episodes for alpha 0.05, got 20"
    ):
        fit(episodes(1, 20, 5), 0.05)


def test_the_command_fits_to_played_episodes(tmp_path, monkeypatch, capsys):
    recipe = load_recipe("sim_rlpd", ["policy.hidden=[8]"])
    (tmp_path / "run").mkdir()
    keep_recipe(recipe, tmp_path / "run", is_locked=True)
    spec = learned_spec(recipe)
    save_policy(
        make_policy(spec, tanh_gaussian.Config(hidden=(8,))),
        tmp_path / "run" / "policies" / policy_name(1),
    )
    assert main(["monitor", "fit", str(tmp_path / "run")]) == 1
    assert "--episodes 300" in capsys.readouterr().err
    monkeypatch.setattr("rlinf_core.cli.monitor.simulated_steps", lambda *_: episodes(0, 150, 50))
    assert (
        main(
            [
                "monitor",
                "fit",
                str(tmp_path / "run"),
                "--episodes",
                "200",
                "--alpha",
                "0.1",
                "--json",
                str(tmp_path / "figures.json"),
            ]
        )
        == 0
    )
    assert "were found before half time" in capsys.readouterr().out
    assert json.loads((tmp_path / "figures.json").read_text())["found_early"] > 0.5
    assert Monitor.load(tmp_path / "run" / "monitor.safetensors", spec.hash).alpha == 0.1
