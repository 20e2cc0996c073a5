"""A failure monitor: its bound on false alarms, early failures, its file and its command."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlinf_core.cli.main import main
from rlinf_core.cli.monitor import judge
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.policies import make_policy
from rlinf_core.policies.monitor import Monitor, Steps, fit
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.station import learned_spec
from rlinf_core.trainer.folder import write_recipe

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
    alarms = [watch.is_alarm(*step) for step in zip(one.vectors, one.actions, strict=True)]
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
    write_recipe(recipe, tmp_path / "run", is_locked=True)
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


def by_hand(**changes):
    """Return a monitor whose 20 references lie on a line, half a deviation from each other.

    The first number of reference k is at (k - 9.5) / 2 deviations, its action is (k, 1), and k time
    steps were left.
    """
    numbers = np.arange(20.0)
    parts = dict(
        spec_hash="abc",
        alpha=0.1,
        mean=np.array([1.0, 2.0]),
        std=np.array([2.0, 0.5]),
        vectors=np.stack([(numbers - 9.5) / 2, np.zeros(20)], axis=1),
        actions=np.stack([numbers, np.ones(20)], axis=1),
        left=numbers,
        scale=np.stack([np.zeros(5), np.ones(5)]),
        weights=np.array([0.0, 0.0, 0.0, 0.0, 1.0, 0.0]),
        threshold=np.array([1.0, 5.0, 3.0, -np.inf]),
    )
    return Monitor(**parts | changes)


def at(deviations, second=0.0):
    return np.array([1.0 + 2.0 * deviations, 2.0 + 0.5 * second])


def test_features_of_a_time_step_by_hand():
    watch = by_hand().watch()
    # the ten nearest of the last reference are the last ten: k is 14.5 on average
    first = watch.features(at(4.75), np.array([14.5 + 3.0, 1.0 + 4.0]))
    assert first.tolist() == pytest.approx([2.25, 5.0, 14.5, 0.0, 1.0])
    second = watch.features(at(0.0), np.array([9.5, 1.0]))  # k is 5 to 14
    novelty = 2.25 + 0.4 * (1.25 - 2.25)
    assert second.tolist() == pytest.approx([novelty, 3.0, 12.5, 12.5 - 14.5 + 1.0, 2.0])
    rows = [watch.features(at(-4.75), np.array([4.5, 1.0])) for _ in range(4)]
    left = [9.3, 7.38, 6.228, 5.5368]  # two fifths of the way to 4.5 each time
    assert [row[2] for row in rows] == pytest.approx(left)
    assert [row[3] for row in rows] == pytest.approx(
        [9.3 - 14.5 + 2, 7.38 - 14.5 + 3, 6.228 - 14.5 + 4, 5.5368 - 12.5 + 4]
    )
    assert [row[4] for row in rows] == [3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_numbers_far_away_count_as_five_deviations(sign):
    distances = np.hypot((np.arange(10) - 4.5) / 2, 5.0)
    novelty = by_hand().watch().features(at(0.0, 100.0 * sign), np.zeros(2))[0]
    assert novelty == pytest.approx(distances.mean())


def test_fewer_references_than_neighbours_all_count():
    few = by_hand(
        vectors=np.array([[0.0, 0.0], [3.0, 4.0]]),
        actions=np.array([[1.0, 1.0], [3.0, 1.0]]),
        left=np.array([4.0, 8.0]),
    )
    features = few.watch().features(at(0.0), np.array([2.0, 1.0]))
    assert features.tolist() == pytest.approx([2.5, 0.0, 6.0, 0.0, 1.0])


def test_a_score_weighs_scaled_features():
    monitor = by_hand(
        scale=np.array([[0.25, 1.0, 4.5, 0.0, 0.0], [2.0, 4.0, 5.0, 1.0, 0.5]]),
        weights=np.array([1.0, 10.0, 100.0, 1000.0, 0.5, 7.0]),
    )
    score = monitor.watch().score(at(4.75), np.array([17.5, 5.0]))
    assert score == pytest.approx(1.0 * 1.0 + 10.0 * 1.0 + 100.0 * 2.0 + 0.5 * 2.0 + 7.0)


@pytest.mark.parametrize(
    ("threshold", "first_alarm"),
    [
        ([1.0, 5.0, 3.0, -np.inf], 3),  # a score at its threshold raises none
        ([1.0, 5.0, 3.0, 10.0], 10),  # later time steps have the last one
        ([0.5], 0),
        ([20.0], -1),
    ],
)
def test_the_first_score_above_its_threshold_is_the_alarm(threshold, first_alarm):
    """The score of these weights is the number of time steps."""
    monitor = by_hand(threshold=np.array(threshold))
    one = Steps(np.tile(at(0.0), (12, 1)), np.zeros((12, 2)), False)
    assert monitor.scores(one).tolist() == list(range(1, 13))
    assert monitor.limits(12).tolist() == (threshold + threshold[-1:] * 12)[:12]
    assert monitor.alarm(one) == first_alarm
    watch = monitor.watch()
    alarms = [watch.is_alarm(*step) for step in zip(one.vectors, one.actions, strict=True)]
    assert alarms == (np.arange(1, 13) > monitor.limits(12)).tolist()


def split(everything, seed=0):
    """Return the three thirds of the successful episodes, as ``fit`` draws them."""
    order = np.random.default_rng(seed).permutation(len(everything))
    successes = [everything[index] for index in order if everything[index].success]
    return successes[::3], successes[1::3], successes[2::3]


@pytest.mark.parametrize("failures", [6, 4])
def test_a_fit_equals_its_definition(failures):
    everything = episodes(3, 33, failures)
    monitor = fit(everything, 0.2, "abc", seed=7)
    assert (monitor.spec_hash, monitor.alpha) == ("abc", 0.2)
    reference, weighing, calibrating = split(everything, 7)
    vectors = np.concatenate([one.vectors for one in reference])
    np.testing.assert_allclose(monitor.mean, vectors.mean(axis=0))
    np.testing.assert_allclose(
        monitor.std, np.maximum(vectors.std(axis=0), 0.05 * abs(vectors).max(axis=0)) + 1e-6
    )
    np.testing.assert_allclose(
        monitor.vectors, np.clip((vectors - monitor.mean) / monitor.std, -5.0, 5.0)
    )
    np.testing.assert_array_equal(
        monitor.actions, np.concatenate([one.actions for one in reference])
    )
    assert monitor.left.tolist() == [
        left for one in reference for left in range(len(one.vectors), 0, -1)
    ]

    def features(one):
        watch = monitor.watch()
        return np.stack(
            [watch.features(*step) for step in zip(one.vectors, one.actions, strict=True)]
        )

    failed = [one for one in everything if not one.success]
    good, bad = ([features(one) for one in group] for group in (weighing, failed))
    rows = np.concatenate(good + bad)
    np.testing.assert_allclose(monitor.scale, [rows.mean(axis=0), rows.std(axis=0) + 1e-6])
    if failures < 5:
        assert monitor.weights.tolist() == [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    else:  # each group counts as much as the other, and each episode as the others of its group
        slope = 1e-3 * monitor.weights
        slope[-1] = 1e-6 * monitor.weights[-1]
        for group, label in ((good, 0.0), (bad, 1.0)):
            for part in group:
                inputs = np.column_stack(
                    [(part - monitor.scale[0]) / monitor.scale[1], np.ones(len(part))]
                )
                chance = 1.0 / (1.0 + np.exp(-inputs @ monitor.weights))
                slope += inputs.T @ (chance - label) / len(part) / len(group)
        assert abs(slope).max() < 1e-8, "the loss of a logistic regression is smallest there"

    scores = [monitor.scores(one) for one in weighing]
    alive = sorted((len(one) for one in scores), reverse=True)[4]  # five last as long
    columns = [[one[step] for one in scores if len(one) > step] for step in range(alive)]
    middle = np.array([np.median(column) for column in columns])
    spread = np.array([np.std(column) for column in columns])
    deviation = np.maximum(spread, 0.25 * spread.mean() + 1e-3)
    peaks = []
    for one in map(monitor.scores, calibrating):
        within = np.minimum(np.arange(len(one)), alive - 1)
        peaks.append(max((one - middle[within]) / deviation[within]))
    # of 11 episodes one tenth may be above: ceil(0.9 * 12) = 11, the highest one
    limit = middle + max(peaks) * deviation
    longest = max(len(one.vectors) for one in calibrating)
    expected = [*(limit[min(step, alive - 1)] for step in range(longest)), -np.inf]
    np.testing.assert_allclose(monitor.threshold, expected)


def test_a_monitor_compares_with_2000_time_steps_at_most(monkeypatch):
    monkeypatch.setattr("rlinf_core.policies.monitor.REFERENCES", 50)
    everything = episodes(3, 33, 0)
    monitor = fit(everything, 0.2)
    assert monitor.vectors.shape == (50, 2) and monitor.actions.shape == (50, 2)
    full = np.concatenate([one.actions for one in split(everything)[0]])
    places = [int(np.flatnonzero((full == action).all(axis=1))[0]) for action in monitor.actions]
    assert places == sorted(set(places)), "each is another one, in their order"
    left = [left for one in split(everything)[0] for left in range(len(one.vectors), 0, -1)]
    assert monitor.left.tolist() == [left[place] for place in places]
    assert monitor.spec_hash == ""


@pytest.mark.parametrize(("alpha", "smallest"), [(0.2, 30), (0.1, 57), (0.5, 30)])
def test_a_fit_needs_enough_successful_episodes(alpha, smallest):
    fit(episodes(1, smallest, 0), alpha)
    with pytest.raises(RlinfError) as refused:
        fit(episodes(1, smallest - 1, 9), alpha)
    assert str(refused.value) == (
        f"monitor: expected at least {smallest} successful episodes for alpha {alpha:g}, got "
        f"{smallest - 1}. Play more, or choose a larger --alpha"
    )


def test_a_monitor_file_holds_all_of_it_and_another_file_is_refused(tmp_path):
    path, monitor = tmp_path / "m.safetensors", by_hand(alpha=0.25)
    monitor.save(path)
    loaded = Monitor.load(path)
    assert (loaded.spec_hash, loaded.alpha) == ("abc", 0.25)
    for name, value in vars(monitor).items():
        np.testing.assert_array_equal(getattr(loaded, name), value)
    with pytest.raises(RecipeError) as refused:
        Monitor.load(path, "xyz")
    assert str(refused.value) == (
        f"station.policy.monitor {path}: expected one of specs xyz, got abc. Fit one to episodes "
        "of this station"
    )
    for metadata, got in ((None, "format None"), ({"format": "other"}, "format 'other'")):
        save_file({"mean": monitor.mean}, path, metadata)
        with pytest.raises(RecipeError) as refused:
            Monitor.load(path)
        assert str(refused.value) == (
            f"station.policy.monitor {path}: expected a file of rlinf monitor fit "
            f"(rlinf-monitor-1), got: {got}"
        )
    save_file({"mean": monitor.mean}, path, {"format": "rlinf-monitor-1"})
    with pytest.raises(RecipeError, match="got: 'about'"):
        Monitor.load(path)
