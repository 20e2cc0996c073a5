"""A released policy is compared with the one before, and rolled back if it is worse."""

import fcntl
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from rlinf_core.cli.fleet import table
from rlinf_core.core.errors import BridgeError, RlinfError
from rlinf_core.deploy.releases import Release
from rlinf_core.deploy.releases.commands import CommandQueue, ReleaseCommand, send_command
from rlinf_core.deploy.releases.overview import overview
from rlinf_core.deploy.releases.record import Evidence, Outcome
from tests.trainer.test_release import Fleet

WATCHED = Release(
    staged=True, episodes=2, watch=60, interlock=False, odds_ratio=4.0, alpha=0.1, beta=0.2
)
GOOD, BAD = [1] * 32, [0] * 32


def by_all_beginnings(pairs, odds):
    """1 over the largest mean of the ratios from each pair that differs on, those still to come as
    1: by the definition.
    """
    ratios = np.array(
        [2 * odds / (1 + odds) if pair > 0 else 2 / (1 + odds) for pair in pairs if pair]
    )
    largest = 1.0
    for end in range(1, len(ratios) + 1):
        weights = 1 / (np.arange(1, end + 1) * np.arange(2, end + 2))
        suffix_ratios = np.array([np.prod(ratios[begin:end]) for begin in range(end)])
        largest = max(largest, weights @ suffix_ratios + 1 - weights.sum())
    return 1 / largest


def p_value(pairs, odds):
    evidence = Evidence()
    for pair in pairs:
        evidence.add(pair, odds)
    return evidence.p_value


def test_the_p_value_is_that_of_its_definition(random):
    for odds in (1.5, 3.0, 9.0):
        for worse in (0.3, 0.5, 0.8):
            pairs = np.where(random.random(60) < worse, 1.0, -1.0) * (random.random(60) < 0.7)
            assert p_value(pairs, odds) == pytest.approx(by_all_beginnings(pairs, odds))
    assert p_value([], 3.0) == p_value([0.0] * 1000, 3.0) == p_value([-1.0] * 1000, 3.0) == 1.0
    assert p_value([1.0] * 5000, 3.0) == 0.0


@pytest.mark.parametrize("worse", [0.5, 0.4])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_a_policy_that_is_no_worse_is_called_so_no_more_often_than_alpha_however_often_one_looks(
    random, worse, alpha
):
    paths, looks = 1500, 300
    pairs = np.where(random.random((paths, looks)) < worse, 1.0, -1.0)
    # the smallest that any of the looks saw
    alarms = np.mean([p_value(path, 3.0) <= alpha for path in pairs])
    assert alarms <= alpha + 3 * np.sqrt(alpha / paths), alarms
    assert worse < 0.5 or alarms > alpha / 20, "it does see what chance makes"
    worst = pairs.cumsum(axis=1) / np.sqrt(np.arange(1, looks + 1))
    assert worse < 0.5 or np.mean(worst[:, 10:].max(axis=1) > 1.645) > 0.2, (
        "a test of 5 % at each of these looks would"
    )


def test_what_is_worse_from_some_pair_on_is_found_out_also_after_long():
    from_the_first, late = ([] if start == 0 else [1, -1] * 100 for start in (0, 1))

    def needed(before):
        return next(more for more in range(200) if p_value([*before, *[1] * more], 3.0) <= 0.025)

    assert needed(from_the_first) < 12 and needed(late) < 40, (needed(from_the_first), needed(late))


def released(folder, settings=WATCHED, old=GOOD, stations="ab", interlock=0.0):
    """Version 1 was played by these stations, and version 2 went to all after its trial at a."""
    fleet = Fleet(folder, settings, stations)
    fleet.look(1)
    for station in stations:
        fleet.play(1, old, station=station, interlock=interlock)
    fleet.look(2)
    assert fleet.versions(2)[0] == 2 and fleet.record.watched is None
    fleet.play(2, old[-2:], interlock=interlock)
    assert fleet.look(2) == [2] * len(stations) and fleet.record.watched.before == 1
    return fleet


def test_one_that_turns_out_worse_is_rolled_back_for_all_and_never_tried_again(tmp_path):
    fleet = released(tmp_path)
    fleet.play(2, [1] * 10, station="b")
    assert fleet.look(2) == [2, 2]
    fleet.play(2, BAD[:2])
    fleet.play(2, BAD[:3], station="b")
    assert fleet.look(2) == [2, 2]
    fleet.play(2, [0], station="b")
    assert fleet.look(2) == [1, 1] and fleet.record.watched is None
    assert fleet.record.refused[2] == (
        "success worse since its release to all: 10 of 16 succeeded, interlock 0.0%; version 1 "
        "there: 16 of 16 succeeded, interlock 0.0%"
    )
    assert "version 2 is rolled back to 1: success worse" in fleet.record.decisions[-1]
    fleet.play(1, [1, 1])
    assert fleet.look(2) == [1, 1] and fleet.look(3) == [3, 1], "the next one is"


def test_stations_that_have_played_nothing_leave_the_others_all_that_is_compared(tmp_path):
    fleet = Fleet(tmp_path, WATCHED, "abcdefghij")
    fleet.look(1)
    fleet.play(1, [1] * WATCHED.watch)
    fleet.look(1)
    fleet.releases.promote(2, "by hand")
    assert {name: len(old) for name, old in fleet.record.watched.old.items()} == {
        "a": WATCHED.watch
    }


def test_as_good_as_before_it_stays_and_then_there_is_nothing_left_to_compare_with(tmp_path):
    fleet = released(tmp_path, old=[1, 0] * 16)
    for station in "ab":
        fleet.play(2, [1, 0] * 16, station=station)
    watched = fleet.record.watched
    assert (
        fleet.look(2) == [2, 2] and len(watched.pairs) == 60 and watched.old == {"a": [], "b": []}
    )
    fleet.play(2, BAD)
    assert fleet.look(2) == [2, 2], "that is for the next one to be compared with"


def test_no_episode_counts_in_a_trial_and_after_it_nor_twice_nor_at_another_station(tmp_path):
    assert [
        len(old) for old in released(tmp_path / "few", stations="abc").record.watched.old.values()
    ] == [20] * 3
    fleet = released(tmp_path, WATCHED.but(watch=100), stations="abc")
    watched = fleet.record.watched
    assert [len(watched.old[station]) for station in "abc"] == [30, 32, 32], (
        "2 of a's were in its trial's pairs"
    )
    lost = Outcome(id="x", version=2, success=False, interlock=0.0)
    for _ in range(40):
        fleet.releases.add_outcome("b", lost)
    assert [new.id for new, _ in watched.pairs] == ["x"]
    assert watched.pairs[0][1].id == "e64", "the last that b played"
    fleet.play(2, BAD, station="z")
    fleet.play(1, BAD, station="b")
    assert len(watched.pairs) == 1, "nothing to compare it with at z; and of another version"


def test_the_interlock_counts_where_it_matters_and_both_share_the_probability_of_a_false_alarm(
    tmp_path,
):
    for matters in (True, False):
        fleet = released(tmp_path / str(matters), WATCHED.but(interlock=matters), interlock=0.2)
        fleet.play(2, GOOD[:20], interlock=0.3)
        assert fleet.look(2) == ([1, 1] if matters else [2, 2])
        assert fleet.releases.threshold == (0.05 if matters else 0.1)
    assert (
        "interlock worse since"
        in Fleet(tmp_path / "True", WATCHED.but(interlock=True)).record.refused[2]
    )


def test_a_trial_that_goes_on_meanwhile_ends_undecided(tmp_path):
    fleet = released(tmp_path)
    fleet.play(2, [1, 1])
    assert fleet.look(3) == [3, 2]
    fleet.play(2, BAD[:12], station="b")
    assert (
        fleet.look(3) == [1, 1] and fleet.record.trial is None and list(fleet.record.refused) == [2]
    )
    assert fleet.record.decisions[-2].endswith("the trial of version 3 ends undecided")
    fleet.play(1, [1, 1])
    assert fleet.look(3) == [3, 1], "it may be tried again"


def test_by_hand_it_is_watched_as_well_and_without_a_watch_it_is_not(tmp_path):
    fleet = released(tmp_path)
    fleet.play(2, GOOD[:5], station="b")
    fleet.releases.promote(1, "by hand")
    assert fleet.record.watched.before == 2
    fleet.releases.promote(1, "by hand")
    assert fleet.record.watched.before == 2, "it was that of all already"
    fleet.releases.roll_back("by hand")
    assert fleet.record.watched is None
    other = Fleet(tmp_path / "other", WATCHED.but(watch=0)).on_trial()
    other.play(2, [1, 1])
    assert other.look(2) == [2, 2] and other.record.watched is None


def test_a_restarted_trainer_goes_on_comparing(tmp_path):
    fleet = released(tmp_path)
    fleet.releases._next_write = 0.0
    fleet.play(2, BAD[:4], station="b")
    fleet.look(2)
    fleet.again()
    watched = fleet.record.watched
    assert len(watched.pairs) == 4 and watched.p_values["success"] < 0.5
    fleet.releases.add_outcome("b", watched.pairs[0][0])
    assert len(watched.pairs) == 4, "as when a trainer that was started again reads its inbox"
    fleet.play(2, BAD[:8], station="b")
    assert fleet.look(2) == [1, 1]
    fleet.settings = Release()
    fleet.again()
    assert fleet.versions(3) == [3, 3] and fleet.record.watched is None


def test_people_see_what_is_compared_and_when_it_would_be_rolled_back(tmp_path):
    fleet = released(tmp_path)

    def shown():
        console = Console(width=300, highlight=False)
        summary = json.loads(json.dumps(overview(fleet.releases, fleet.last_reports)))
        with console.capture() as text:
            console.print(table(summary))
        return text.get()

    assert (
        "Version 2 was released to all and is watched: no episode of it has arrived yet." in shown()
    )
    fleet.play(2, [0, 1, 0, 0], station="b")
    assert (
        "Version 2 since its release to all, 4 episodes: 1 of 4 succeeded, interlock 0.0%; "
        "version 1 there: 4 of 4 succeeded, interlock 0.0%. p: success 0.35; rolled back at 0.1."
    ) in shown()
    fleet.record.watched.old.clear()
    assert "No episode is left for a comparison, so it stays." in shown()


def test_a_pin_and_a_drain_of_a_station_that_is_no_more_can_be_taken_off_and_nothing_else_be_asked_of_it(
    tmp_path,
):
    fleet = Fleet(tmp_path)
    fleet.record.pins, fleet.record.drained = {"gone": 1}, ["gone"]
    orders = CommandQueue(fleet.releases, tmp_path)
    for action in ("unpin", "undrain"):
        assert orders._execute(
            ReleaseCommand(action=action, stations=["gone"]), fleet.last_reports
        ).endswith(": 'gone'")
    assert (fleet.record.pins, fleet.record.drained) == ({}, [])
    with pytest.raises(
        RlinfError, match="station 'gone': expected a station that has called this trainer: a, b"
    ):
        orders._execute(ReleaseCommand(action="drain", stations=["gone"]), fleet.last_reports)


def test_commands_are_obeyed_in_the_order_in_which_they_were_given_whatever_the_clock_says(
    tmp_path, monkeypatch
):
    orders, obeyed, waiting = CommandQueue(SimpleNamespace(), tmp_path), [], []
    monkeypatch.setattr(
        orders, "_answer", lambda path, _: obeyed.append(path.stem) or {"text": "", "error": ""}
    )
    orders.folder.mkdir()
    (tmp_path / "recipe.yaml").write_text("")
    for number, name in enumerate(["notes", "9-zz", "10-aa"]):
        path = orders.folder / f"{name}.json"
        path.write_text("{}")
        os.utime(path, (1e9 - number, 1e9 - number))
    monkeypatch.setattr(
        "rlinf_core.deploy.releases.commands.time.sleep",
        lambda _: waiting.extend(
            path.name.partition("-")[0] for path in orders.folder.glob("1?-*.json")
        ),
    )
    with pytest.raises(BridgeError, match="the command is withdrawn"):
        send_command(tmp_path, ReleaseCommand(action="rollback"), patience_s=0.1)
    assert set(waiting) == {"10", "11"}
    orders.execute({})
    assert obeyed == ["notes", "9-zz", "10-aa"]


def test_a_command_whose_sender_waits_is_kept_by_a_new_trainer_and_any_other_is_not(tmp_path):
    folder = tmp_path / "orders"
    folder.mkdir()
    for name in (
        "1-gone.json",
        "1-gone.waits",
        "2-waits.json",
        "2-waits.waits",
        "3-old.answer",
        "2-waits.taken",
    ):
        (folder / name).write_text("{}")
    with (folder / "2-waits.waits").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        CommandQueue(SimpleNamespace(), tmp_path)
        assert sorted(path.name for path in folder.iterdir()) == ["2-waits.json", "2-waits.waits"]
    CommandQueue(SimpleNamespace(), tmp_path)
    assert list(folder.iterdir()) == []
