"""The keyboard of a terminal, by the bytes that it sends."""

import os
import time

import pytest

from rlinf_core.robots.operators import keyboard
from rlinf_core.robots.operators.device import Guard
from rlinf_core.robots.operators.keyboard import Keyboard

pytestmark = pytest.mark.timed


class Terminal:
    """Stands in for stdin."""

    def __init__(self):
        self.inside, self.outside = os.pipe()

    def isatty(self):
        return True

    def fileno(self):
        return self.inside


@pytest.fixture
def guard(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr(keyboard, "SEQUENCE_S", 60.0)  # a busy machine cuts none in two
    guard = Guard("keyboard", Keyboard())
    guard.open()
    guard.poll()
    guard.terminal = terminal.outside
    yield guard
    os.close(terminal.inside)


def typed(guard, *parts):
    """Return the requests of the typed keys, part by part."""
    requests = []
    for part in parts:
        os.write(guard.terminal, part)
        requests += guard.poll()
    return requests


@pytest.mark.parametrize("sent", [b"\xff", b"\xc3", "ü".encode(), b"\x1b", b"\x00", b"Z"])
def test_any_key_renews_the_enable_and_asks_for_nothing_else(guard, sent):
    assert set(typed(guard, sent)) == {"enable"} and guard.trusted and not guard.trouble
    assert guard.motion() is None
    guard.device.unfinished_at -= 100.0
    assert typed(guard, b"e") == ["arm"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x1b[2~",
        b"\x1b[15~",
        b"\x1b[A",
        b"\x1bOP",
        b"\x1b[1;5C",
        b"\x1b[[A",
        b"\x1be",
        b"\x1bw",
        b"\x1bOa",
        b"\x1b\x1b[3~",
        b"\x1b[24;2~",
    ],
)
def test_an_arrow_a_function_key_or_one_with_alt_is_no_letter_and_no_number(guard, sent):
    for cut in range(1, len(sent) + 1):  # wherever it is cut in two
        requests = typed(guard, *(part for part in (sent[:cut], sent[cut:]) if part))
        assert set(requests) == {"enable"} and guard.motion() is None, (cut, requests)
    assert typed(guard, b"1", b"e", b"w") == ["1", "arm", "enable"] and guard.motion()["x"] > 0


@pytest.mark.parametrize("before", [b"\x1b", b"\x1b[", b"\x1bO", b"\x1b[2", b"\xff", b"\x1b[2~"])
@pytest.mark.parametrize("key", [b"q", b" "])
def test_q_and_the_space_bar_disarm_whatever_came_before_them(guard, before, key):
    assert "disarm" in typed(guard, before, key)
    assert "disarm" in typed(guard, before + key)
    assert "disarm" in typed(guard, before + b" q" if key == b"q" else before + b" A")


def test_the_space_bar_stops_and_renews_no_enable(guard):
    """The same key stops on the page."""
    assert typed(guard, b" ") == ["disarm"] and guard.motion() is None
    assert typed(guard, b"\n") == ["enable"] and guard.motion() is None


def test_what_comes_later_than_the_rest_of_a_sequence_is_a_key_of_its_own(guard, monkeypatch):
    monkeypatch.setattr(keyboard, "SEQUENCE_S", 0.05)
    assert typed(guard, b"\x1b") == ["enable"]
    time.sleep(0.06)
    assert typed(guard, b"e2") == ["arm", "2"]


def test_a_terminal_that_ends_is_trouble_and_what_was_pressed_before_disarms(guard):
    os.write(guard.terminal, b"eyq")
    os.close(guard.terminal)
    assert guard.poll() == ("disarm",)
    assert "unplugged: the terminal was closed" in guard.trouble and not guard.trusted
