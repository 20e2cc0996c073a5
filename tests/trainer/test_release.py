"""Assignment of policies to stations: Wald's test, silent stations, and restarts."""

import json
import math
import time
from functools import partial

import numpy as np
import pytest

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.releases import Release
from rlinf_core.deploy.releases.record import (
    ALL,
    NOT_WORSE,
    OPEN,
    WORSE,
    Outcome,
    sequential_verdict,
)
from rlinf_core.deploy.releases.releases import FILE, SILENT_S, ReleaseController
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.sources import check_source

STAGED = Release(staged=True, episodes=8, interlock=False, odds_ratio=4.0, alpha=0.25, beta=0.2)


def ends(worse, pairs, odds, alpha, beta):
    """Probabilities of each end within so many pairs that differ, each of them worse with a
    probability: by all ways.
    """
    probabilities, open_ = {WORSE: 0.0, NOT_WORSE: 0.0}, {(0, 0): 1.0}
    for _ in range(pairs):
        following = {}
        for (lost, won), mass in open_.items():
            for state, part in (
                ((lost + 1, won), worse * mass),
                ((lost, won + 1), (1 - worse) * mass),
            ):
                ratio = (
                    (odds / (1 + odds)) ** state[0]
                    * (1 / (1 + odds)) ** state[1]
                    / 0.5 ** sum(state)
                )
                end = WORSE if ratio >= 1 / alpha else NOT_WORSE if ratio <= beta else ""
                if end:
                    probabilities[end] += part
                else:
                    following[state] = following.get(state, 0.0) + part
        open_ = following
    return probabilities


@pytest.mark.parametrize(
    "odds, alpha, beta", [(3.0, 0.05, 0.1), (3.0, 0.025, 0.1), (2.0, 0.1, 0.05), (9.0, 0.01, 0.2)]
)
def test_neither_error_is_more_probable_than_it_may_be_however_long_it_goes_on(odds, alpha, beta):
    for better in (0.5, 0.4):
        assert 0 < ends(better, 1000, odds, alpha, beta)[WORSE] <= alpha
    for worse in (odds / (1 + odds), odds / (1 + odds) + 0.05):
        assert 0 < ends(worse, 1000, odds, alpha, beta)[NOT_WORSE] <= beta
    assert ends(odds / (1 + odds), 1000, odds, alpha, beta)[WORSE] >= 1 - beta - 1e-6, (
        "it comes to an end"
    )


def test_it_ends_where_the_likelihoods_say_so_and_pairs_that_did_alike_say_nothing(random):
    judge = partial(sequential_verdict, odds=3.0, alpha=0.05, beta=0.1)
    first = math.ceil(math.log(20) / math.log(1.5))
    assert judge([1] * first) == WORSE and judge([1] * (first - 1)) == OPEN
    assert judge([1, 0, 0] * first) == WORSE and judge([0] * 10_000) == OPEN
    assert judge([-1] * 4) == NOT_WORSE and judge([-1] * 3) == OPEN
    assert judge([-1] * 4 + [1] * 100) == NOT_WORSE, "what has ended stays so"
    counts = {end: 0 for end in (WORSE, NOT_WORSE, OPEN)}
    for _ in range(2000):
        counts[judge(np.sign(random.random(40) - 0.25))] += 1
    wanted = ends(0.75, 40, 3.0, 0.05, 0.1)
    assert all(abs(counts[end] / 2000 - wanted[end]) < 4 * math.sqrt(0.25 / 2000) for end in wanted)


class Fleet:
    """Stations, and the trainer's releases."""

    def __init__(self, run_dir, settings=STAGED, stations="ab"):
        self.run_dir, self.settings = run_dir, settings
        run_dir.mkdir(exist_ok=True)
        self.last_reports = {name: (time.monotonic(), pb.StationReport()) for name in stations}
        self.releases, self.count = ReleaseController(settings, run_dir), 0

    def look(self, newest):
        self.releases.update_trials(newest, self.last_reports)
        return self.versions(newest)

    def versions(self, newest):
        return [self.releases.version_for(name, newest) for name in self.last_reports]

    def play(self, version, successes, interlock=0.0, station="a"):
        for success in successes:
            self.count += 1
            outcome = Outcome(
                id=f"e{self.count}", version=version, success=bool(success), interlock=interlock
            )
            self.releases.add_outcome(station, outcome)

    def on_trial(self, version=2, stations="a"):
        """Put this policy on trial after the stations have played the first one."""
        self.look(1)
        for station in stations:
            self.play(1, [1] * self.settings.episodes, station=station)
        self.look(version)
        return self

    def again(self):
        self.releases = ReleaseController(self.settings, self.run_dir)

    @property
    def record(self):
        return self.releases.record


def test_without_stages_each_policy_is_that_of_all(tmp_path):
    fleet = Fleet(tmp_path, Release())
    fleet.look(1)
    fleet.play(1, [1] * 60)
    assert fleet.look(2) == [2, 2] and not (tmp_path / FILE).exists()


def test_the_first_policy_is_that_of_all_and_the_next_is_tried_once_there_is_something_to_compare_with(
    tmp_path,
):
    fleet = Fleet(tmp_path)
    assert fleet.look(-1) == [-1, -1] and fleet.look(1) == [1, 1] and fleet.look(2) == [1, 1]
    fleet.play(1, [1] * 7)
    assert fleet.look(3) == [1, 1]
    fleet.play(1, [1])
    assert fleet.look(4) == [4, 1], "the newest by then, at one station"
    assert fleet.look(5) == [4, 1], "the next one waits"


def test_one_that_is_worse_is_rolled_back_and_never_tried_again(tmp_path):
    fleet = Fleet(tmp_path).on_trial()
    fleet.play(2, [0, 1, 0])
    assert fleet.versions(2) == [2, 1]
    fleet.play(2, [0])
    assert fleet.look(2) == [1, 1] and fleet.look(2) == [1, 1]
    assert "success worse: 1 of 4 succeeded" in fleet.record.refused[2]
    assert fleet.look(3) == [1, 1], "what it was compared with is no measure for the next one"
    fleet.play(1, [1] * 7)
    assert fleet.look(3) == [1, 1]
    fleet.play(1, [1])
    assert fleet.look(3) == [3, 1]


def test_one_that_is_not_worse_goes_to_all(tmp_path):
    fleet = Fleet(tmp_path).on_trial()
    fleet.play(2, [1, 0, 1, 1, 1, 1, 1])
    assert fleet.look(3) == [2, 1]
    fleet.play(2, [1])
    assert fleet.look(3) == [2, 2], "the next one is compared with what it plays from now on"
    assert "version 2 goes to all stations: not found worse: 7 of 8" in fleet.record.decisions[-1]
    fleet.play(2, [1] * 8, station="b")
    assert fleet.look(3) == [2, 3]
    better = Fleet(tmp_path / "other")
    better.look(1)
    better.play(1, [0] * 8)
    better.look(2)
    better.play(2, [1, 1])
    assert better.look(2) == [2, 2] and "not worse: 2 of 2" in better.record.decisions[-1], (
        "before its episodes are over"
    )


def test_more_of_the_interlock_is_worse_too_unless_they_do_not_matter(tmp_path):
    for matter, end in ((True, 1), (False, 2)):
        settings = STAGED.but(interlock=matter, episodes=20)
        fleet = Fleet(tmp_path / str(matter), settings)
        fleet.look(1)
        fleet.play(1, [1] * 20, interlock=0.2)
        fleet.look(2)
        fleet.play(2, [1] * 20, interlock=0.3)
        assert fleet.look(2) == [end, end]
    assert (
        "interlock worse"
        in Fleet(tmp_path / "True", settings.but(interlock=True)).record.refused[2]
    )


def test_two_measures_share_the_probability_of_a_false_alarm(tmp_path):
    fleet = Fleet(tmp_path, STAGED.but(interlock=True)).on_trial()
    fleet.play(2, [0] * 4)
    assert fleet.look(2) == [2, 1], "3 would be enough for one measure alone"
    fleet.play(2, [0])
    assert fleet.look(2) == [1, 1]


def test_it_is_compared_with_what_was_played_last_before_it(tmp_path):
    fleet = Fleet(tmp_path)
    fleet.look(1)
    fleet.play(1, [0, 0, 0, 0, 0, 1, 1, 1])
    fleet.look(2)
    fleet.play(2, [0, 0, 0])
    assert fleet.look(2) == [1, 1]


def test_an_episode_counts_once_and_one_of_another_version_or_station_not_at_all(tmp_path):
    fleet = Fleet(tmp_path).on_trial()
    fleet.play(9, [0] * 9)
    fleet.play(2, [0] * 9, station="b")
    lost = Outcome(id="x", version=2, success=False, interlock=0.0)
    for _ in range(9):
        fleet.releases.add_outcome("a", lost)
    assert fleet.record.trial.new == [lost]
    fleet.again()
    fleet.releases.add_outcome("a", lost)
    assert fleet.record.trial.new == [lost], (
        "as when a trainer that was started again reads its inbox"
    )


@pytest.mark.parametrize("good", [True, False])
def test_what_was_compared_is_compared_with_nothing_else_by_a_trainer_that_reads_it_again(
    tmp_path, good
):
    fleet = Fleet(tmp_path, STAGED.but(watch=8)).on_trial()
    fleet.play(2, [1, 0, 1, 1, 1, 1, 1, 1] if good else [0] * 3)
    assert fleet.versions(2) == ([2, 2] if good else [1, 1])
    read = fleet.count
    fleet.again()
    fleet.count = 0
    fleet.play(1, [1] * 8)
    fleet.play(2, [1, 0, 1, 1, 1, 1, 1, 1] if good else [0] * 3)
    assert fleet.count == read and not fleet.record.watched
    fleet.look(2)
    assert len(fleet.releases.recent["a"]) == (0 if good else 5), "five were compared with nothing"
    fleet.play(1 + good, [1] * (8 if good else 3))
    assert fleet.look(3) == [3, 1 + good]


def test_what_can_be_gone_back_to_and_what_a_station_is_meant_to_have_is_needed(tmp_path):
    fleet = Fleet(tmp_path).on_trial()
    fleet.record.pins, fleet.record.previous = {"b": 30}, [11, 12, 13, 14, 15, 16]
    assert fleet.releases.needed() == {1, 2, 12, 13, 14, 15, 16, 30} and fleet.record.previous == [
        12,
        13,
        14,
        15,
        16,
    ]


def test_a_restarted_trainer_goes_on_with_trial_pins_and_what_was_refused(tmp_path):
    fleet = Fleet(tmp_path).on_trial()
    fleet.play(2, [0, 0])
    fleet.record.pins, fleet.record.drained = {"b": 1}, ["b"]
    fleet.releases.record_decision()
    fleet.again()
    assert fleet.look(3) == [2, 1] and fleet.releases.wait_reason("b").startswith("drained")
    fleet.play(2, [0])
    fleet.again()
    assert fleet.record.trial is None and 2 in fleet.record.refused and fleet.record.current == 1
    fleet.settings = Release()
    fleet.again()
    assert fleet.versions(3) == [3, 1], "without stages the newest is that of all; a pin holds"
    (tmp_path / FILE).write_text(json.dumps({"current": "one"}))
    with pytest.raises(
        RlinfError,
        match=r"(?s)release.json: expected a file of this trainer.*Correct or delete",
    ):
        fleet.again()


def test_the_first_policy_of_all_outlives_a_trainer_that_was_told_something_before_there_was_one(
    tmp_path,
):
    """Or one that begins anew would send the newest to all, on trial or not."""
    fleet = Fleet(tmp_path)
    fleet.record.drained = ["b"]
    fleet.releases.record_decision()
    fleet.look(1)
    fleet.versions(1)
    fleet.look(1)
    fleet.again()
    assert fleet.versions(12) == [1, 1]


def test_the_canary_is_one_that_is_there_and_another_takes_over_when_it_is_not(tmp_path):
    fleet = Fleet(tmp_path, stations="abc")
    fleet.record.pins, fleet.record.drained = {"a": 1}, ["b"]
    fleet.on_trial(stations="abc")
    assert fleet.record.trial.station == "c"
    fleet.record.pins, fleet.record.drained = {}, []
    assert fleet.look(2) == [1, 1, 2], "it stays where it is"
    fleet.play(2, [0, 0], station="c")
    fleet.releases.recent["a"].clear()
    fleet.last_reports["c"] = (time.monotonic() - SILENT_S - 1, pb.StationReport())
    assert fleet.look(2) == [1, 2, 1], "where there is something to compare it with"
    assert fleet.record.trial.new == [] and {old.id for old in fleet.record.trial.old} == {
        f"e{n}" for n in range(9, 17)
    }
    fleet.last_reports = {
        name: (time.monotonic() - SILENT_S - 1, report)
        for name, (_, report) in fleet.last_reports.items()
    }
    assert fleet.look(2) == [1, 2, 1], "nobody is there to take over"
    named = Fleet(tmp_path / "named", STAGED.but(canary="z")).on_trial(stations="az")
    assert named.record.trial is None
    named.last_reports["z"] = (time.monotonic(), pb.StationReport())
    assert named.look(2) == [1, 1, 2]
    named.record.drained = ["z"]
    assert named.look(2) == [1, 1, 2] and named.record.trial.station == "z"


def test_while_all_are_pinned_nothing_is_tried(tmp_path):
    fleet = Fleet(tmp_path)
    fleet.record.pins = {ALL: 1, "b": 3}
    fleet.on_trial()
    assert fleet.record.trial is None and fleet.versions(2) == [1, 3]


def test_a_policy_that_its_station_cannot_load_is_rolled_back(tmp_path):
    fleet = Fleet(tmp_path).on_trial()
    for version, left in ((1, True), (2, False)):
        error = f"policy /there/policy-{version:08d}.safetensors does not fit this station"
        fleet.last_reports["a"] = (time.monotonic(), pb.StationReport(policy_error=error))
        fleet.look(2)
        assert (fleet.record.trial is not None) == left, (
            "an error of another version says nothing of this one"
        )
    assert "station 'a' cannot load it" in fleet.record.refused[2] and fleet.versions(2) == [1, 1]


def test_by_hand_any_version_is_that_of_all_and_the_one_before_comes_back(tmp_path):
    fleet = Fleet(tmp_path).on_trial()
    fleet.play(2, [1, 0])
    fleet.releases.promote(2, "by hand")
    assert fleet.look(2) == [2, 2]
    fleet.releases.roll_back("by hand")
    assert (
        fleet.look(2) == [1, 1]
        and fleet.record.previous == []
        and fleet.record.refused == {2: "by hand"}
    )
    fleet.releases.promote(2, "by hand")
    assert fleet.look(2) == [2, 2] and fleet.record.refused == {}


@pytest.mark.parametrize(
    "change", [("algorithm.name=async_ppo", "policy.kind=gaussian"), ("simulation.environments=4",)]
)
def test_stages_where_there_are_none_are_refused_by_name(change):
    with pytest.raises(RecipeError, match="release.staged: expected false for .* got true"):
        check_source(load_recipe("demo", [*change, "release.staged=true"]))
