"""An interrupt within an import or a destructor is neither lost nor told as a traceback."""

import os
import signal
import time

import pytest

from rlinf_core.core import signals
from rlinf_core.core.signals import defer_signals, on_signal
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer.train import train
from tests.algorithms.point import Points

NUMBERS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture(autouse=True)
def as_the_commands_answer():
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    yield
    assert all(
        signal.signal(number, handler) is signal.default_int_handler
        for number, handler in before.items()
    )


class Asks:
    """Requests the end in a place where exceptions are swallowed."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        os.kill(os.getpid(), self.number)


def ask(number):
    Asks(number)


@NUMBERS
def test_a_signal_waits_for_the_end_of_the_block(number):
    done = []
    with pytest.raises(KeyboardInterrupt), defer_signals():
        ask(number)
        done.append("the block goes on")
    assert done


@NUMBERS
def test_it_is_not_lost_where_the_block_fails(number):
    with pytest.raises(KeyboardInterrupt), defer_signals():
        ask(number)
        raise ImportError("by whatever it broke")


def test_asked_twice_at_once_is_asked_once_and_asked_again_is_answered_at_once(monkeypatch):
    received, done = [], []
    with on_signal(received.append):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGINT]
    monkeypatch.setattr(signals, "SECOND_SIGNAL_S", 0.02)
    with pytest.raises(KeyboardInterrupt), defer_signals():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        done.append("held")
        os.kill(os.getpid(), signal.SIGINT)
        done.append("still held")
    assert done == ["held"]


SHORT = [
    "simulation.env_steps=1000000",
    "simulation.evaluate_episodes=2",
    "policy.hidden=[16]",
    "algorithm.critic_hidden=[16]",
    "simulation.environments=2",
]


@NUMBERS
def test_a_run_that_is_asked_to_end_while_it_begins_ends_then(tmp_path, number):
    def make(recipe, size):
        ask(number)
        return Points(size)

    reports = []
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe("sim_sac", SHORT), tmp_path, make, lambda run, entry: reports.append(run))
    assert not reports and not (tmp_path / "checkpoints").exists()


@NUMBERS
def test_a_run_that_is_asked_to_end_comes_to_its_end_with_a_checkpoint(tmp_path, number):
    step_counts = []

    def on_progress(run, entry):
        step_counts.append(run.steps)
        ask(number)

    train(load_recipe("sim_sac", SHORT), tmp_path, lambda recipe, size: Points(size), on_progress)
    assert len(step_counts) < 10 and list((tmp_path / "checkpoints").iterdir())
