"""The operator's page at a running station, without a browser: takeover, what ends it, the stop,
labels, episodes.
"""

import asyncio
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import aiohttp
import pytest
from rlinf_msgs.msg import EpisodeEvent, SafetyState
from sensor_msgs.msg import Joy

from rlinf_core.robots.operators.page import ACTIVE, BUTTONS
from rlinf_operator.page import Page
from tests.ros.conftest import peer_in
from tests.ros.page_station import Client, Paged, ready, visitor
from tests.ros.stand_ins import listen

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paged")
    with peer_in(folder, 66) as peer:
        station = Paged(peer, folder)
        yield station
        station.close()


@pytest.fixture
def page(station):
    with visitor(station) as client:
        yield client


def takes_over(station, page, **axes):
    ready(station, page)
    station.reach(SafetyState.ACTIVE)
    page.hold(**(axes or {"y": 1.0}))
    before = station.at
    station.peer.spin(
        lambda: station.state.source == "operator" and station.at[1] > before[1] + 0.004,
        what=lambda: f"motion: {station.state} {page.messages['state']}",
    )


def auto_reset(station, page):
    """What ended has been let go of, and somebody is there again."""
    page.enable_anew(station.peer)
    station.peer.spin(
        lambda: station.state.source == "policy",
        what=lambda: f"the policy: {station.state} {page.messages['state']}",
    )


def test_what_is_held_moves_the_arm_and_what_is_let_go_gives_it_back(station, page):
    takes_over(station, page)
    station.peer.spin(
        lambda: page.messages["state"]["safety"]["source"] == "operator", 10, "the page to say so"
    )
    assert page.messages["state"]["safety"]["takeover"] == "CORRECTING"
    assert page.messages["state"]["arms"][0]["pose"]
    auto_reset(station, page)
    before = station.at
    station.peer.spin(lambda: station.at[2] > before[2] + 0.002, what="the policy's drift")


def test_a_held_takeover_that_falls_silent_holds_the_arm_though_the_policy_goes_on(station, page):
    takes_over(station, page)
    page.silent = True
    station.reach(SafetyState.HOLD)
    station.rests()
    assert station.enables[-1].data is False
    station.peer.spin(
        lambda: "silent: a takeover is held" in page.messages["state"]["operator"],
        30,
        "the page to say so",
    )
    page.silent, page.held = False, True
    station.peer.for_s(1.0)
    assert station.state.state == SafetyState.HOLD, (
        "held again from where it was counts for nothing"
    )
    auto_reset(station, page)


@pytest.mark.parametrize("how", ["the socket closes", "garbage", "another page takes the controls"])
def test_whatever_ends_the_connection_of_a_takeover_holds_the_arm_and_disarms_nothing(
    station, page, how
):
    takes_over(station, page)
    other = Client(station.url)
    station.peer.spin(lambda: "state" in other.messages, what="the other page")
    if how == "garbage":
        page.send("\x00garbage")
        station.peer.spin(lambda: page.closed == 1008, 30, "the end of the connection")
    elif how == "the socket closes":
        page.close()
    else:
        other.active = False
        assert other.ask(station.peer, "take")["well"]
    station.reach(SafetyState.HOLD)
    station.rests()
    assert station.state.state == SafetyState.HOLD, "and is armed"
    other.active = True
    assert other.ask(station.peer, "take")["well"]
    auto_reset(station, other)
    other.close()


def test_an_idle_page_that_goes_away_stops_nothing(station, page):
    ready(station, page)
    station.reach(SafetyState.ACTIVE)
    states, enables = len(station.states), len(station.enables)
    page.close()
    station.peer.for_s(1.5)
    assert not {state.state for state in station.states[states:]} & {
        SafetyState.DISARMED,
        SafetyState.FAULT,
    }
    assert all(enable.data for enable in station.enables[enables:])
    station.reach(SafetyState.ACTIVE)


def test_disarm_stop_release_reset_and_arm_do_what_they_say_and_name_what_stands(station, page):
    ready(station, page)
    assert page.ask(station.peer, "disarm")["well"]
    station.reach(SafetyState.DISARMED)
    # a state that is late forbids it
    station.peer.spin(lambda: page.ask(station.peer, "arm")["well"], what="arming")
    station.reach(SafetyState.ARMED)
    station.peer.for_s(0.5)
    assert station.state.state == SafetyState.ARMED, "a disarming ends what was asked for"
    ready(station, page)
    station.reach(SafetyState.ACTIVE)

    async def stop():
        headers = {"Origin": station.url}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{station.url}/stop") as got,
        ):
            return got.status

    assert asyncio.run(stop()) == 200
    station.reach(SafetyState.FAULT, "estop:page")
    refused = page.ask(station.peer, "reset", cause="estop:page")
    assert not refused["well"] and "estop:page" in refused["text"]
    assert not page.ask(station.peer, "arm")["well"]
    assert page.ask(station.peer, "release")["well"]
    wrong = page.ask(station.peer, "reset", cause="contact")
    assert not wrong["well"] and "fault 'contact' is not active" in wrong["text"]
    station.peer.for_s(0.3)
    assert page.ask(station.peer, "reset", cause="estop:page")["well"]
    station.reach(SafetyState.DISARMED)
    station.peer.spin(lambda: page.messages["state"]["why"] == "", 30, "the page to say so")


def test_a_disarm_goes_before_an_arm_that_was_asked_for_earlier_and_is_still_on_its_way(
    station, page
):
    ready(station, page)
    for _ in range(5):
        assert page.ask(station.peer, "disarm")["well"]
        station.reach(SafetyState.DISARMED)
        before, states = len(page.notes), len(station.states)
        page.press("arm")
        page.press("disarm")
        station.peer.spin(lambda: len(page.notes) == before + 2, what="both answers")  # noqa: B023
        station.peer.for_s(0.3)
        assert {note["what"]: note["well"] for note in page.notes[before:]} == {
            "arm": False,
            "disarm": True,
        }
        assert {state.state for state in station.states[states:]} == {SafetyState.DISARMED}


@pytest.mark.parametrize("label", ["success", "failure", "rerecord", "discard"])
def test_a_label_ends_the_episode_as_it_says(station, page, label):
    ready(station, page)
    before = len(station.episodes)
    station.peer.for_s(0.5)
    assert page.ask(station.peer, label)["well"]
    aside = label in ("rerecord", "discard")
    wanted = EpisodeEvent.ABORTED if aside else EpisodeEvent.ENDED
    station.peer.spin(
        lambda: any(event.kind == wanted for event in station.episodes[before:]), what="its end"
    )
    ended = next(event for event in station.episodes[before:] if event.kind == wanted)
    assert (ended.success, ended.failure) == (label == "success", label == "failure")
    if aside:
        station.peer.spin(lambda: page.messages["state"]["episode"]["playing"], what="another one")
    else:
        station.peer.spin(
            lambda: station.episodes[-1].kind == EpisodeEvent.CLOSED, what="it on the disk"
        )
        station.peer.spin(
            lambda: page.messages["state"]["episode"]["last"]["id"] == ended.episode_id,
            30,
            "it on the page",
        )
        station.peer.spin(lambda: page.messages["history"]["success"], 30, "and in its curve")


def test_what_comes_late_arms_nothing_and_renews_no_enable_though_a_disarm_and_a_label_count(
    station, page
):
    ready(station, page)
    station.peer.for_s(1.5)
    page.silent, joys, before = True, listen(station, Joy, "page"), len(station.episodes)
    station.peer.for_s(0.5)
    joys.clear()
    early = page.ask(station.peer, "success", shown_at=time.monotonic() - 99.0)
    assert not early["well"] and "before this episode began" in early["text"] and not joys
    assert page.ask(station.peer, "success", shown_at=time.monotonic() - 1.5)["well"]
    station.peer.spin(
        lambda: any(event.kind == EpisodeEvent.ENDED for event in station.episodes[before:]),
        what="its end",
    )
    assert [joy.buttons[BUTTONS.index("success")] for joy in joys] == [1]
    assert page.ask(station.peer, "disarm", shown_at=time.monotonic() - 9.0)["well"]
    station.reach(SafetyState.DISARMED)
    late = page.ask(station.peer, "arm", shown_at=time.monotonic() - 9.0)
    assert not late["well"] and "came 9.0 s after it and was ignored" in late["text"]
    station.peer.for_s(0.5)
    assert station.state.state == SafetyState.DISARMED and not any(
        joy.buttons[BUTTONS.index(ACTIVE)] for joy in joys
    )
    page.silent = False


def test_a_late_label_of_one_who_let_go_is_passed_on_and_renews_no_enable(station, page):
    takes_over(station, page)
    page.silent = True
    station.peer.spin(
        lambda: "silent: a takeover is held" in page.messages["state"]["operator"],
        what="the enable let go",
    )
    page.let_go()
    page.active, page.silent = False, False
    station.peer.spin(
        lambda: not page.messages["state"]["operator"], what="the device to be well again"
    )
    station.peer.for_s(1.0)
    before = len(station.enables)
    assert page.ask(station.peer, "success", shown_at=time.monotonic() - 1.5)["well"]
    station.peer.for_s(0.5)
    assert not any(enable.data for enable in station.enables[before:])
    assert page.ask(station.peer, "success")["text"] == "labelled: success"
    station.peer.spin(
        lambda: any(enable.data for enable in station.enables[before:]),
        30,
        "the enable, by who is there",
    )


def test_a_demonstration_waits_for_its_word_on_the_page_and_may_be_given_up(station, page):
    ready(station, page)
    assert page.ask(station.peer, "success")["well"]
    station.peer.spin(
        lambda: not page.messages["state"]["episode"]["playing"], what="the end of the one before"
    )
    station.peer.spin(
        lambda: page.ask(station.peer, "start", mode="demonstration")["well"],
        what="the start of another",
    )
    station.peer.spin(
        lambda: "confirm that it is ready" in page.messages["state"]["prompt"], what="the question"
    )
    assert not page.messages["state"]["episode"]["playing"]
    assert page.ask(station.peer, "ready")["well"]
    station.peer.spin(lambda: page.messages["state"]["episode"]["playing"], what="the episode")
    assert page.ask(station.peer, "discard")["well"]
    station.peer.spin(lambda: page.messages["state"]["prompt"], what="the question of the next one")
    assert page.ask(station.peer, "cancel")["well"]
    station.peer.spin(lambda: not page.messages["state"]["prompt"], 30, "its end")


def test_cameras_come_while_somebody_looks(station, page):
    ready(station, page)
    before = page.frames
    station.peer.spin(lambda: page.frames > before + 10, what="frames")
    assert page.messages["station"]["cameras"] == ["simulator", "front", "wrist"]


def test_an_interlock_that_hangs_is_not_shown_as_it_was(station, page):
    ready(station, page)
    assert page.messages["state"]["heard"]
    hung = station.peer.supervisor.children["interlock"].popen.pid
    os.kill(hung, signal.SIGSTOP)
    try:
        station.peer.spin(lambda: not page.messages["state"]["heard"], what="the page to say so")
    finally:
        os.kill(hung, signal.SIGCONT)
    station.peer.spin(lambda: page.messages["state"]["heard"], what="it to be heard again")


def test_the_death_of_its_process_is_an_e_stop_and_its_end_a_disarming(station, page):
    ready(station, page)
    station.reach(SafetyState.ACTIVE)
    os.kill(station.peer.supervisor.children["page"].popen.pid, signal.SIGKILL)
    station.reach(SafetyState.FAULT, "estop_silent:page")
    with visitor(station) as again:
        ready(station, again)
        station.reach(SafetyState.ACTIVE)
        os.kill(station.peer.supervisor.children["page"].popen.pid, signal.SIGTERM)
        station.reach(SafetyState.DISARMED)


def test_an_episode_whose_environment_has_died_is_over_and_the_late_end_of_an_older_one_is_not_that_of_the_newer():
    page, gids = Page.__new__(Page), [[1]]  # without ROS
    page.requests = MagicMock()
    page.server = MagicMock()
    page.timestep_subscription = None
    page.run_dir = Path("/nowhere")
    page.episode, page.get_node_names = EpisodeEvent(kind=EpisodeEvent.ABORTED), lambda: []
    page._refusals, page._watch_views, page.views = dict, lambda: None, []
    page.get_publishers_info_by_topic = lambda topic: [
        SimpleNamespace(endpoint_gid=gid) for gid in gids
    ]

    def playing(kind=None, name=""):
        if kind is not None:
            page._on_episode(EpisodeEvent(kind=kind, episode_id=name))
        page._poll()
        return page.episode.kind == EpisodeEvent.STARTED

    assert playing(EpisodeEvent.STARTED, "a")
    gids[:] = [[1], [2]]
    assert playing(), "a dead one is known for a while"
    gids[:] = [[2]]
    assert not playing() and playing(EpisodeEvent.STARTED, "b")
    assert playing(EpisodeEvent.ABORTED, "a") and not playing(EpisodeEvent.ENDED, "b")
