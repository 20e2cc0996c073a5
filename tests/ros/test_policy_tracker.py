"""The policy of an episode and its instruction, message by message."""

from types import SimpleNamespace

import pytest
from builtin_interfaces.msg import Time
from rlinf_msgs.msg import Applied, PolicyStatus

from rlinf_core.core.errors import SpecError
from rlinf_station.episodes import (
    InstructionParameter,
    PolicyTracker,
    checked_instruction,
    episode_name,
    new_request,
    request_of,
)


def applied(session, version, source="policy", at_s=10):
    return Applied(
        source=source, session=session, policy_version=version, observation_stamp=Time(sec=at_s)
    )


@pytest.fixture
def tracker():
    tracker = PolicyTracker()
    assert not tracker.update(PolicyStatus(session="a", version=54))
    tracker.begin("evaluate", 10 * 10**9)
    return tracker


def test_an_episode_has_the_version_that_was_applied(tracker):
    assert tracker.version == 54, "announced, until something is applied"
    assert not tracker.update(PolicyStatus(session="a", version=55)) and tracker.version == 55
    assert not tracker.played(applied("a", 55)) and tracker.version == 55
    assert not tracker.played(applied("o", -1, "operator")) and tracker.version == 55, (
        "a takeover leaves it the policy's"
    )


def test_the_last_action_of_the_episode_before_does_not_count(tracker):
    assert not tracker.played(applied("a", 53, at_s=9)) and tracker.version == 54
    assert not tracker.played(applied("a", 54))


@pytest.mark.parametrize("session, version", [("a", 55), ("b", 54), ("b", 55)])
def test_another_version_or_process_within_an_episode_breaks_it(tracker, session, version):
    assert not tracker.played(applied("a", 54))
    assert f"from version 54 to {version}" in tracker.played(applied(session, version))


def test_a_policy_that_starts_again_breaks_the_episode_before_it_can_act(tracker):
    assert "restarted during the episode" in tracker.update(PolicyStatus(session="b", version=54))
    tracker.begin("demonstration", 11 * 10**9)
    assert not tracker.update(PolicyStatus(session="c", version=54)) and tracker.version == -1


def test_an_episode_of_the_operator_alone_is_of_no_version(tracker):
    assert not tracker.played(applied("o", -1, "operator")) and tracker.version == -1
    assert not tracker.update(PolicyStatus(session="a", version=56)) and tracker.version == -1


def test_episodes_of_one_request_are_known_by_their_names():
    one, other = new_request(), new_request()
    names = [
        episode_name("arm-1", request, number) for request in (one, other) for number in (1, 1000)
    ]
    assert (
        len({*names}) == 4
        and [request_of(name) for name in names] == [f"arm-1-{one}"] * 2 + [f"arm-1-{other}"] * 2
    )


def test_before_its_first_action_an_episode_is_of_the_newest_policy():
    tracker = PolicyTracker()
    assert (tracker.version, tracker.announced.version, tracker.mode) == (-1, -1, "")
    tracker.begin("demonstration", 0)
    assert not tracker.update(PolicyStatus(session="a", version=3)) and tracker.version == -1
    tracker.begin("train", 0)
    assert tracker.version == 3
    assert not tracker.played(applied("o", -1, "operator")) and tracker.version == -1
    assert not tracker.played(applied("a", 3)) and tracker.version == 3, "its first action"
    assert not tracker.played(applied("a", 3)) and tracker.session == "a"


def test_an_action_at_the_beginning_of_its_episode_counts(tracker):
    assert not tracker.played(applied("a", 60)) and tracker.version == 60
    tracker.begin("evaluate", 11 * 10**9)
    assert tracker.session is None and tracker.version == 54


def test_names_sort_by_time_and_number():
    assert episode_name("lab", "20261122T040052-1f3a9c2b", 7) == "lab-20261122T040052-1f3a9c2b-007"
    stamp, _, rest = new_request().partition("-")
    assert len(rest) == 8 and int(rest, 16) >= 0 and "T" in stamp


@pytest.mark.parametrize(
    "words, fits", [("", ""), ("pick it", "pick it"), ("  pick it ", "pick it")]
)
def test_an_instruction_has_no_blanks_around_it(words, fits):
    assert checked_instruction(words) == fits


@pytest.mark.parametrize(
    "words, reason",
    [
        ("  ", "expected words, or '' for the instruction of scene or task; got blanks"),
        ("a\nb", r"expected one line of words, got 'a\\nb'"),
        ("ö" * 65, "expected at most 128 bytes of UTF-8 .* got 130"),
    ],
)
def test_an_instruction_that_is_none_is_refused(words, reason):
    with pytest.raises(SpecError, match=reason):
        checked_instruction(words)


def test_a_nodes_instruction_changes_with_its_parameter():
    hooks, declared, logged = {}, [], []
    node = SimpleNamespace(
        add_on_set_parameters_callback=lambda do: hooks.__setitem__("check", do),
        add_post_set_parameters_callback=lambda do: hooks.__setitem__("set", do),
        declare_parameter=lambda name, default: declared.append((name, default)),
        get_logger=lambda: SimpleNamespace(info=logged.append),
    )
    instruction = InstructionParameter(node)
    assert declared == [("instruction", "")] and instruction.words == ""

    def parameters(words):
        return [
            SimpleNamespace(name="other", value="   "),
            SimpleNamespace(name="instruction", value=words),
        ]

    for words, value in ((" stack ", "stack"), ("stack", "stack"), ("", "")):
        assert hooks["check"](parameters(words)).successful
        hooks["set"](parameters(words))
        assert instruction.words == value
    assert logged == ["asked for: stack", "asked for: the instruction of scene or task"]
    refused = hooks["check"](parameters("   "))
    assert not refused.successful and "got blanks" in refused.reason
