"""The intake of recordings: no file stops a trainer, and no wrong data are learned."""

import errno
import io
import json
import os
import re

import numpy as np
import pytest
from rich.console import Console

from rlinf_core.core.errors import IngestError, RecipeError, StartupError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.checksums import SUMS, seal
from rlinf_core.episodes.spool import Spool
from rlinf_core.rollouts.episode_conversion import episode_to_trajectory
from rlinf_core.specs.arrays import INSTRUCTION, decode_instructions
from rlinf_core.trainer.sources.recordings import Intake, check_demonstrations, read_recordings
from tests.messages import record

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


class Taken(list):
    """Collects the results of an intake; each counts as online."""

    def __call__(self, trajectory):
        self.append(trajectory)
        return "online"


def intake(run_dir, spec):
    run_dir.mkdir(exist_ok=True)
    return Intake(run_dir, spec, 49)


def at(topic, number, **fields):
    """Return a change of one message: attributes to values, or to functions of the message."""

    def change(where, n, message):
        if where == topic and n == number:
            for name, value in fields.items():
                setattr(message, name, value(message) if callable(value) else value)

    return change


def vectors(value):
    def change(where, n, message):
        if where == "timestep" and n == 2:
            message.vectors[0].data = np.full(3, value, np.float32)

    return change


def stamped(message):
    message.header.stamp.sec = 0
    message.header.stamp.nanosec = 0
    return message.header


def test_what_was_asked_for_is_of_each_time_step(spool, task, tmp_path):
    def other(topic, number, message):
        if topic == "timestep" and number > 1:
            message.instruction = "do that"

    record(spool, task.spec, steps=4, change=other).close()
    episode = read_episode(spool.root / "closed/a-1", sealed=True)
    assert (
        episode.instructions == ("do it",) * 2 + ("do that",) * 3 and episode.instruction == "do it"
    )
    assert (
        decode_instructions(episode_to_trajectory(episode, task.spec).observations[INSTRUCTION])
        == episode.instructions
    )


REFUSED = {
    "nobody commanded": (dict(leave=("applied",)), "the arm had no commander"),
    "mixed action sizes": (
        dict(change=at("applied", 3, requested=np.zeros(2))),
        r"actions of one size, got \[2, 3\]",
    ),
    "another action size": (
        dict(
            change=lambda t, n, m: (
                t == "applied"
                and (setattr(m, "requested", np.zeros(2)), setattr(m, "executed", np.zeros(2)))
            )
        ),
        "requested actions: expected shape",
    ),
    "too long": (dict(steps=60), "expected 1 to 49 transitions"),
    "NaN observation": (dict(change=vectors(NAN)), "'tcp_position': expected finite values"),
    "Inf observation": (dict(change=vectors(-INF)), "'tcp_position': expected finite values"),
    "absurd observation": (dict(change=vectors(3e38)), "'tcp_position': expected finite values"),
    "NaN action": (
        dict(change=at("applied", 1, requested=np.array([NAN, 0, 0]))),
        "requested actions: expected finite",
    ),
    "Inf executed": (
        dict(change=at("applied", 1, executed=np.array([INF, 0, 0]))),
        "executed actions: expected finite",
    ),
    "NaN reward": (dict(change=at("timestep", 3, reward=NAN)), "rewards: expected finite"),
    "absurd reward": (dict(change=at("timestep", 3, reward=1e30)), "rewards: expected finite"),
    "NaN discount": (
        dict(change=at("timestep", 3, discount=NAN)),
        "discounts: expected values from 0 to 1",
    ),
    "negative discount": (dict(change=at("timestep", 3, discount=-1.0)), "discounts"),
    "large discount": (dict(change=at("timestep", 3, discount=2.0)), "discounts"),
    "time goes back": (
        dict(change=at("timestep", 3, header=stamped)),
        "expected increasing stamps",
    ),
    "unknown mode": (
        dict(mode="attack"),
        "mode: expected one of demonstration, train, evaluate, got 'attack'",
    ),
    "an instruction with NUL": (
        dict(change=lambda t, n, m: t == "timestep" and setattr(m, "instruction", "do\0it")),
        r"episode a-1: instruction: expected at most 128 bytes of UTF-8 without NUL, got 5",
    ),
    "no station": (
        dict(change=lambda t, n, m: t == "episode" and setattr(m, "station", "")),
        "station: expected a name",
    ),
    "a station of another form": (
        dict(change=lambda t, n, m: t == "episode" and setattr(m, "station", "a/b" * 99)),
        "station: expected a name of at most 64 letters",
    ),
    "another id inside": (
        dict(
            change=lambda t, n, m: t in ("timestep", "episode") and setattr(m, "episode_id", "b-2")
        ),
        r"expected a recording of that id, got one of b-2\. It is not used for training",
    ),
    "an observation of another name": (
        dict(change=lambda t, n, m: t == "timestep" and setattr(m.vectors[0], "name", "x")),
        "observations: expected",
    ),
    "an observation of another size": (
        dict(
            change=lambda t, n, m: (
                t == "timestep" and setattr(m.vectors[0], "data", np.zeros(4, np.float32))
            )
        ),
        r"expected float32\[6, 3\], got float32\[6, 4\]",
    ),
}


@pytest.mark.parametrize("how, pattern", REFUSED.values(), ids=REFUSED.keys())
def test_what_may_not_be_learned_from_is_refused_by_name_set_aside_and_logged(
    spool, task, tmp_path, capsys, how, pattern
):
    folder = record(spool, task.spec, **how).close()
    run = intake(tmp_path / "run", task.spec)
    taken = Taken()
    run.take(folder, taken)
    (line,) = map(json.loads, (tmp_path / "run/journal.jsonl").read_text().splitlines())
    reason = (tmp_path / "run/refused/a-1.reason.txt").read_text()
    assert line.keys() == {"id", "status", "time"} and line["id"] == "a-1"
    assert (
        line["status"].startswith("refused: episode")
        and line["status"] in reason
        and "a-1" in capsys.readouterr().out
    )
    assert (tmp_path / "run/refused/a-1/a-1.mcap").is_file() and not folder.exists(), (
        "kept, and out of the way"
    )
    assert run.counts()["refused"] == 1 and not taken
    assert re.search(pattern, reason), reason


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda m: setattr(m.images[0], "width", 4) or setattr(m.images[0], "height", 16),
            "'front': expected uint8",
        ),
        (lambda m: m.images.pop(), "observations: expected"),
        (lambda m: setattr(m.images[0].header, "frame_id", "side"), "observations: expected"),
    ],
)
def test_images_must_be_those_of_the_spec(spool, task, change, message):
    spec = task.with_images({"front": (8, 8)}).spec
    folder = record(
        spool, spec, change=lambda topic, n, m: topic == "timestep" and change(m)
    ).close()
    assert message in intake(spool.root / "run", spec).take(folder, Taken())


def test_a_damaged_folder_is_refused_whatever_it_raises_and_the_next_one_is_taken(
    spool, task, tmp_path, monkeypatch
):
    folders = [record(spool, task.spec, f"e{number}").close() for number in range(6)]
    (folders[0] / SUMS).unlink()
    (folders[1] / "e1.mcap").write_bytes(b"")
    (folders[2] / "e2.mcap").write_bytes(os.urandom(5000))
    seal(folders[2])
    (folders[3] / "e3.mcap").unlink()
    seal(folders[3])
    monkeypatch.setattr(
        "rlinf_core.rollouts.episode_conversion.read_episode",
        lambda folder, sealed: (
            read_episode(folder, sealed)
            if folder.name != "e4"
            else exec("raise RecursionError('of another kind')")
        ),
    )
    run = intake(tmp_path / "run", task.spec)
    for folder in (*folders, tmp_path / "absent"):
        run.take(folder, Taken())
    statuses = [
        json.loads(line)["status"]
        for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()
    ]
    assert [status.split(":")[0] for status in statuses] == ["refused"] * 5 + ["online"] + [
        "refused"
    ]
    assert "RecursionError: of another kind" in statuses[4] and run.counts()["refused"] == 6
    assert sorted(path.name for path in (tmp_path / "run/refused").glob("*/")) == [
        f"e{n}" for n in range(5)
    ]


def test_what_a_recording_says_of_itself_does_nothing_to_a_terminal_or_a_log(
    spool, task, tmp_path, capsys
):
    modes = {"a": "\x1b[2J\nfake line", "b": "x" * 9999}
    run = intake(tmp_path / "run", task.spec)
    for name, mode in modes.items():
        run.take(record(spool, task.spec, name, mode=mode).close(), Taken())
    output = capsys.readouterr().out
    assert output.count("\n") == 2 and "\x1b" not in output and len(output) < 5000


def test_an_episode_is_taken_once_and_as_it_was_asked_for_or_executed(spool, task, tmp_path):
    folder, taken = record(spool, task.spec, sources={1: "operator"}).close(), Taken()
    run = intake(tmp_path / "run", task.spec)
    assert [run.take(folder, taken) for _ in range(2)] == ["online", "duplicate"] and len(
        taken
    ) == 1
    again = intake(tmp_path / "run", task.spec)
    again.load_state_dict(run.state_dict())
    assert again.take(folder, taken) == "duplicate"
    Intake(tmp_path / "run", task.spec, 49, use_executed=True).take(folder, taken)
    requested, executed = taken
    assert requested.actions[:, 0] == pytest.approx(1.0) and executed.actions[
        :, 0
    ] == pytest.approx(0.5)
    assert (requested.station, requested.version, requested.mode, requested.success) == (
        "a",
        4,
        "train",
        True,
    )
    assert list(requested.sources) == ["policy", "operator", "policy", "policy", "policy"]


def test_recordings_stay_where_they_are_and_need_one_that_can_be_learned_from(
    spool, task, tmp_path
):
    run, taken = intake(tmp_path / "run", task.spec), Taken()
    good = record(spool, task.spec, "good").close()
    bad = record(spool, task.spec, "bad", leave=("applied",)).close()
    read_recordings((str(spool.root / "closed"),), run, taken)
    assert [episode.id for episode in taken] == ["good"] and good.exists() and bad.exists()
    with pytest.raises(
        RecipeError, match="all 1 were refused, the last one: .*the arm had no commander"
    ):
        read_recordings((str(bad),), intake(tmp_path / "other", task.spec), taken)
    with pytest.raises(RecipeError, match="expected recorded episodes .* found none"):
        read_recordings((str(tmp_path / "run"),), run, taken)


def test_recordings_of_a_user_that_is_not_there_are_refused_by_name(task, tmp_path):
    with pytest.raises(
        RecipeError,
        match="collect.recordings: expected a path in which .* got '~nobody_of_that_name/x'",
    ):
        read_recordings(("~nobody_of_that_name/x",), intake(tmp_path / "run", task.spec), Taken())


@pytest.mark.parametrize(
    "error, raised",
    [
        (MemoryError("for 3 GiB"), IngestError),
        (OSError(errno.ENOSPC, "full"), IngestError),
        (IngestError("the shards died"), IngestError),
        (StartupError("no such module"), StartupError),
    ],
)
def test_where_there_is_no_room_for_an_episode_the_run_ends_and_nothing_is_refused(
    spool, task, tmp_path, error, raised
):
    folder, run = record(spool, task.spec).close(), intake(tmp_path / "run", task.spec)

    def insert(trajectory):
        raise error

    with pytest.raises(raised, match="expected memory to load it|died|no such module") as ended:
        run.take(folder, insert)
    if not isinstance(error, (IngestError, StartupError)):
        assert str(ended.value) == (
            f"episode a-1: expected memory to load it, got {type(error).__name__}: {error}. The "
            "episode and the last checkpoint are unchanged. Reduce replay.capacity; the same "
            "command then continues"
        )
    assert (
        folder.is_dir()
        and not run.ids
        and run.counts() == {"refused": 0}
        and not run.journal.path.exists()
    )
    assert run.take(folder, Taken()) == "online"


def test_what_was_refused_is_counted_as_it_is_noted_and_when_a_run_goes_on(spool, task, tmp_path):
    run = intake(tmp_path / "run", task.spec)
    for number, station in enumerate(("a", "b", "b", "")):
        folder = record(spool, task.spec, f"e{number}", leave=("ended",)).close()
        if station:
            run.journal.arrived(folder.name, station, "0" * 64)
        run.take(folder, Taken())
        run.take(folder, Taken())
    run.take(record(spool, task.spec, "good").close(), Taken())
    assert run.counts() == {"refused": 4, "a/refused": 1, "b/refused": 2}
    again = intake(tmp_path / "run", task.spec)
    again.load_state_dict(run.state_dict())
    again.load_state_dict(run.state_dict())
    again.ids = None
    assert again.counts() == run.counts(), "without a look at each, four times a second"


@pytest.mark.parametrize(
    "statuses, message",
    [
        ({}, "of each robot, got none. `rlinf data list` shows"),
        (
            {"refused: episode a: x": 2, "evaluation": 1},
            "of each robot, got 2 refused, 1 evaluation. `rlinf data list` shows",
        ),
    ],
)
def test_too_few_demonstrations_are_counted_by_what_became_of_them(statuses, message):
    check_demonstrations(True, statuses)
    with pytest.raises(RecipeError) as refused:
        check_demonstrations(False, statuses)
    assert message in str(refused.value)


def test_the_bar_of_reading_leaves_the_terminal(spool, task, tmp_path, monkeypatch):
    record(spool, task.spec).close()
    screen, taken = io.StringIO(), Taken()
    monkeypatch.setattr("rich._console", Console(file=screen, force_terminal=True, width=80))
    read_recordings((str(spool.root),), intake(tmp_path / "run", task.spec), taken)
    assert len(taken) == 1 and (spool.root / "closed/a-1").is_dir()
    text = screen.getvalue()
    assert "reading recordings" in text and text.rstrip().endswith("\x1b[2K"), "the line is erased"
