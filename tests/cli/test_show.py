"""`rlinf show` on recordings that the spool has written."""

import shutil
import subprocess
import sys

import pytest

from rlinf_core.cli.main import main
from rlinf_core.episodes.spool import Spool
from rlinf_core.reports.recordings import topics
from tests.messages import record


@pytest.fixture
def spool(tmp_path, task):
    spool = Spool(tmp_path / "run/spool", min_free_mb=0)
    record(spool, task.spec, "a-1", steps=5, sources={0: "operator"}).close()
    record(spool, task.spec, "a-2", steps=4, success=False, mode="evaluate").close()
    record(spool, task.spec, "a-3", leave=("ended",)).abort()
    return spool


def shown(capsys, *argv):
    code = main(["show", *map(str, argv)])
    captured = capsys.readouterr()
    return (
        code,
        {line.split()[0]: line.split() for line in captured.out.splitlines() if line},
        captured.out,
        captured.err,
    )


def test_a_folder_is_a_line_an_episode(spool, capsys):
    code, lines, out, _ = shown(capsys, spool.root.parent)
    assert code == 0
    assert lines["spool/closed/a-1"][1:] == [
        "a",
        "train",
        "success",
        "5",
        "0.5",
        "policy",
        "80%,",
        "operator",
        "20%",
        "4",
        "beef",
        "0.01",
        "sealed",
    ]
    assert lines["spool/closed/a-2"][1:] == [
        "a",
        "evaluate",
        "time",
        "limit",
        "4",
        "0.4",
        "policy",
        "4",
        "beef",
        "0.01",
        "sealed",
    ]
    assert (
        "no episode" in out
        and "spool/broken/a-3: expected time steps up to a LAST one and an ENDED event" in out
    )
    assert "3 recordings: 2 episodes, 1 succeeded, 9 steps; 2 sealed, 1 no seal" in out


def test_an_episode_in_the_spool_and_in_the_inbox_is_counted_once_and_another_of_its_name_is_not_lost(
    spool, task, capsys
):
    shutil.copytree(spool.root / "closed/a-1", spool.root.parent / "inbox/a-1")
    record(Spool(spool.root.parent / "other", min_free_mb=0), task.spec, "a-1", steps=5).close()
    out = shown(capsys, spool.root.parent)[2]
    assert "5 recordings: 3 episodes, 2 succeeded, 14 steps; 4 sealed, 1 no seal" in out


def test_one_recording_shows_its_topics_with_counts_and_times(spool, capsys):
    code, lines, out, _ = shown(capsys, spool.root / "closed/a-1")
    assert code == 0
    assert lines["/station/timestep"] == [
        "/station/timestep",
        "rlinf_msgs/msg/TimeStep",
        "6",
        "10.0",
        "0.00",
        "0.50",
    ]
    assert lines["/station/applied"][2:] == ["5", "10.0", "0.00", "0.40"]
    assert lines["/station/episode"][2:] == ["2", "2.0", "0.00", "0.50"]
    assert (
        "13 messages, "
        f"{sum(f.stat().st_size for f in (spool.root / 'closed/a-1').iterdir()) / 1e6:.2f} MB"
        in out
    )


def test_a_file_of_a_recording_means_the_recording(spool):
    assert main(["show", str(spool.root / "closed/a-1/a-1.mcap")]) == 0
    assert len(topics(spool.root / "closed/a-1")["/station/timestep"][1]) == 6


@pytest.mark.parametrize("here", [".", "metadata.yaml"])
def test_within_its_folder_a_recording_has_its_name(spool, tmp_path, capsys, monkeypatch, here):
    monkeypatch.chdir(spool.root / "closed/a-1")
    code, lines, out, _ = shown(capsys, here)
    assert code == 0 and lines["/station/timestep"][2] == "6"
    assert str(spool.root / "closed/a-1") in "".join(out.split()), "in one line or in two"
    assert main(["data", "check", here]) == 0
    assert main(["data", "merge", here, "--out", str(tmp_path / "all")]) == 0
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["a-1"]
    monkeypatch.chdir(spool.root)
    assert "closed/a-1" in shown(capsys, ".")[1], "below it, names are as short as before"


def test_a_changed_byte_is_told_and_is_exit_code_1(spool, capsys):
    file = spool.root / "closed/a-1/a-1.mcap"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    code, lines, out, _ = shown(capsys, spool.root)
    assert (
        code == 1 and lines["closed/a-1"][-1] == "DAMAGED" and lines["closed/a-2"][-1] == "sealed"
    )
    assert (
        "closed/a-1: expected an intact rosbag2 recording" in out
        and "a-1.mcap does not fit SHA256SUMS" in out
    )


def test_what_was_refused_says_why(spool, capsys):
    spool.refuse("a-2", "spec_hash: expected abc")
    _, _, out, _ = shown(capsys, spool.root)
    assert "refused/a-2: set aside: spec_hash: expected abc" in out


def test_what_is_being_recorded_says_so(spool, task, capsys):
    record(spool, task.spec, "a-4")
    code, _, out, _ = shown(capsys, spool.root)
    assert (
        code == 0
        and "open/a-4: no metadata.yaml: the recording is in progress or was interrupted" in out
    )


def test_words_of_others_do_nothing_to_a_terminal(tmp_path, task, capsys):
    def red(topic, _, message):
        if topic == "episode":
            message.station = "\x1b[31mred [bold]"

    record(Spool(tmp_path, min_free_mb=0), task.spec, change=red).close()
    _, _, out, _ = shown(capsys, tmp_path)
    assert "\x1b" not in out and r"\x1b[31mred [bold]" in out


def test_an_episode_is_drawn(spool, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, out, _ = shown(capsys, spool.root / "closed/a-1", "--plot", tmp_path / "a.png")
    assert (
        code == 0 and (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG") and "picture:" in out
    )
    for target, message in (
        ("a.nothing", "expected a file's name that ends in"),
        ("no/a.png", "writable folder"),
    ):
        with pytest.raises(SystemExit):
            shown(capsys, spool.root / "closed/a-1", "--plot", tmp_path / target)
        assert message in capsys.readouterr().err
    for source, message in (
        ("", "--plot: expected one recording, got 3"),
        ("broken/a-3", "It is unfinished"),
    ):
        code, _, _, error = shown(capsys, spool.root / source, "--plot", tmp_path / "b.png")
        assert code == 1 and message in error and not (tmp_path / "b.png").exists()


@pytest.mark.parametrize(
    "what, message",
    [
        ("nothing", "run), got nothing"),
        ("empty", "or a folder with some, got none"),
        ("run/spool/closed/a-1/SHA256SUMS", "got another file"),
    ],
)
def test_bad_input_is_told_in_one_line(spool, tmp_path, capsys, what, message):
    (tmp_path / "empty").mkdir()
    code, _, out, error = shown(capsys, tmp_path / what)
    assert (
        code == 1
        and not out
        and error.startswith("rlinf: ")
        and message in error
        and len(error.splitlines()) == 1
    )


def test_it_needs_neither_torch_nor_ray_nor_ros(spool):
    code = (
        f"import sys\nfrom rlinf_core.cli.main import main\nassert main(['show', "
        f"{str(spool.root)!r}]) == 0\n"
        "print(sorted({'torch', 'ray', 'rclpy', 'matplotlib'} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output.splitlines()[-1] == "[]"
