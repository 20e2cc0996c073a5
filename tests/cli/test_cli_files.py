"""Output files: the check before the work, one-line refusals, and no lost output."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_core.cli import compare, evaluate, main
from rlinf_core.cli.arguments import json_output_file
from rlinf_core.cli.compare import distinct_names
from rlinf_core.cli.parsers import make_parser
from rlinf_core.core.atomic_io import append_line
from rlinf_core.recipes import load_recipe
from rlinf_core.reports.curves import read_evaluations, read_events

EVALUATION = {
    "event": "evaluation",
    "env_steps": 10,
    "success": 0.5,
    "return": 1.0,
    "episodes": 4,
    "seconds": 3.0,
}


def run_of(folder):
    folder.mkdir(parents=True)
    append_line(folder / "progress.jsonl", json.dumps(EVALUATION))
    return folder


@pytest.mark.parametrize(
    "command, option, expected",
    [
        ("demo --set a=1 b=2 --set c=3", "overrides", ["a=1", "b=2", "c=3"]),
        ("status --set a=1 --set b=2", "overrides", ["a=1", "b=2"]),
        ("eval x --vary a=1 --vary b=2", "vary", ["a=1", "b=2"]),
        ("fleet up --stations a --stations b", "stations", ["a", "b"]),
        ("fleet up", "stations", []),
        ("fleet pin x --off --stations a --stations b", "stations", ["a", "b"]),
        ("data split x --out y --fractions a=1 --fractions b=2", "fractions", ["a=1", "b=2"]),
        ("data import lerobot x --out y --camera a=b --camera c=d", "cameras", ["a=b", "c=d"]),
        ("reward train x --out y --cameras a --cameras b", "cameras", ["a", "b"]),
        ("reward train x --out y --failed a --failed b", "failed", ["a", "b"]),
    ],
)
def test_what_is_said_twice_is_said_together(command, option, expected):
    parser = make_parser()
    assert vars(parser.parse_args(command.split()))[option] == expected
    assert vars(parser.parse_args(command.split()))[option] == expected, (
        "and not once more the next time"
    )


@pytest.mark.parametrize(
    "command, message",
    [
        (
            "compare a --out {}/gone/c.png",
            "--out: expected a file in an existing, writable folder, got",
        ),
        (
            "compare a --out {}/c.txt",
            "--out: expected a file's name that ends in .png, .jpg, .pdf, .svg, got",
        ),
        (
            "compare a --csv {}/recipe.yaml",
            "--csv: expected a file's name that ends in .csv, got",
        ),
        ("compare a --out {}/c", "--out: expected a file's name that ends in .png"),
        ("show a --plot {}/gone/c.png", "--plot: expected a file in an existing"),
        ("eval a --video {}/gone/x.mp4", "--video: expected a file in an existing"),
        ("eval a --json {}", "--json: expected a file in an existing"),
        (
            "data check a --json= ",
            "--json: expected a file in an existing, writable folder, got an empty name",
        ),
        (
            "drill --json=",
            "--json: expected a file in an existing, writable folder, got an empty name",
        ),
        ("data check a --json {}/gone/x.json", "--json: expected a file in an existing"),
        ("drill --json {}/gone/x.json", "--json: expected a file in an existing"),
        ("drill --json {}/file/x.json", "--json: expected a file in an existing"),
        ("camera align demo top --out {}/gone/x.png", "--out: expected a file in an existing"),
        ("calibrate --out {}/x", "--out: expected a file's name that ends in .png, .jpg"),
        (
            f"data split a --out b --seed {'9' * 400}",
            "--seed: expected a number from 0 to 2147483647, got 999",
        ),
    ],
)
def test_what_cannot_be_written_is_told_before_the_work(command, message, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as exit_:
        main.main(command.format(tmp_path).split())
    assert exit_.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "world splats {}/none.json --out {}/mine.ply",
        "find-dynamics {}/none --out {}/mine.yaml",
        "monitor fit {}/none --out {}/mine.yaml",
        "reward train {}/none --out {}/mine.yaml",
        "replay {}/none --out {}",
        "new robot {}/none.xml --out {}",
        "vla adapters {}/none --out {}",
        "vla lerobot {}/none --out {}",
        "vla policy demo --out {}/mine.yaml",
        "make-tiny-vla pi0 --out {}",
        "fleet enroll a --fleet {}/fleet --out {}/mine.yaml",
        "data merge {}/none --out {}",
        "data split {}/none --out {}",
        "data export rerun {}/none --out {}",
        "data repair {}/none --out {}",
        "data import lerobot {}/none --out {}",
    ],
)
def test_an_existing_output_is_refused_before_the_work(command, tmp_path, capsys):
    names = [f"mine.{ending}" for ending in ("ply", "yaml")]
    for name in names:
        (tmp_path / name).write_text("name: mine\n")
    assert main.main(command.format(*[tmp_path] * 4).split()) == 1
    error = capsys.readouterr().err
    assert "[RL-E207]" in error and "overwritten" in error and error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert all((tmp_path / name).read_text() == "name: mine\n" for name in names)


def test_json_replaces_json_alone(tmp_path, capsys):
    recipe, figures = tmp_path / "recipe.yaml", tmp_path / "figures.json"
    recipe.write_text("name: mine\n")
    figures.write_text('{"before": 1}\n')
    (tmp_path / "empty.json").write_text("")
    for path in (figures, tmp_path / "empty.json", tmp_path / "new.json", Path("/dev/null")):
        assert json_output_file(str(path)) == path
    for command in ("data check a", "world rank a", "eval a", "find-dynamics a"):
        with pytest.raises(SystemExit) as exit_:
            main.main([*command.split(), "--json", str(recipe)])
        assert exit_.value.code == 2
        assert "--json: expected a new file or one with JSON" in capsys.readouterr().err
    assert recipe.read_text() == "name: mine\n"


def test_a_file_is_no_run_folder(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text("name: mine\n")
    for command in ("train sim_sac", "view demo", "collect demo", "sweep sim_sac --set seed=0,1"):
        with pytest.raises(SystemExit) as exit_:
            main.main([*command.split(), "--out", str(tmp_path / "recipe.yaml")])
        assert exit_.value.code == 2
        assert "--out: expected a folder, got the file" in capsys.readouterr().err


def test_what_the_system_refuses_is_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    assert main.main(["up", "demo", "--out", str(tmp_path / "file/run")]) == 1
    assert capsys.readouterr().err == f"rlinf: {tmp_path}/file/run: Not a directory\n"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(compare, "draw", full)
    assert main.main(["compare", str(run_of(tmp_path / "run"))]) == 1
    assert capsys.readouterr().err == (
        "rlinf: [Errno 28] No space left on device. Free disk space and run the command again\n"
    )


@pytest.mark.parametrize(
    "closed",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-")),
        "<&- >&- 2>&-",
    ],
)
def test_a_command_that_was_started_without_its_streams_does_its_work(closed, tmp_path):
    """And whatever it starts has them."""
    run_of(tmp_path / "run")
    ran = subprocess.run(
        [
            "sh",
            "-c",
            f'exec "$0" -m rlinf_core.cli.main compare "$1/run" --out "$1/x.png" {closed}',
            sys.executable,
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "") and (tmp_path / "x.png").exists()
    assert bool(ran.stdout) == (">&-" not in closed.split())
    code = (
        "import subprocess, sys; from rlinf_core.cli.arguments import open_streams; open_streams()\n"
        "child = [sys.executable, '-c', 'import sys; sys.exit(None in (sys.stdin, sys.stdout, "
        "sys.stderr))']\n"
        "print(sys.stdin.isatty(), subprocess.call(child), file=open('said', 'w'))"
    )
    subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    assert (tmp_path / "said").read_text() == "False 0\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_whoever_reads_no_further_ends_a_command_without_a_word(unbuffered, tmp_path):
    reads, writes = os.pipe()
    os.close(reads)
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "rlinf_core.cli.main",
            "compare",
            str(run_of(tmp_path / "run")),
            "--out",
            str(tmp_path / "x.png"),
        ],
        stdout=writes,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.slow
def test_figures_of_an_evaluation_are_written_before_a_film_that_may_fail(
    tmp_path, monkeypatch, capsys
):
    from tests.cli.test_cli import save

    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(evaluate, "write_video", fails)
    assert (
        main.main(
            [
                "eval",
                str(save(tmp_path)),
                "--recipe",
                "demo",
                "--episodes",
                "1",
                "--video",
                str(tmp_path / "x.mp4"),
                "--json",
                str(tmp_path / "x.json"),
            ]
        )
        == 1
    )
    assert json.loads((tmp_path / "x.json").read_text())["episodes"] == 1


def test_runs_of_one_name_are_told_apart_by_the_folders_above(tmp_path, capsys):
    runs = [run_of(tmp_path / name / "run") for name in ("sac", "ppo")]
    assert main.main(["compare", *map(str, runs), "--out", str(tmp_path / "x.PNG")]) == 0
    output = capsys.readouterr().out
    assert "sac/run  " in output and "ppo/run  " in output and (tmp_path / "x.PNG").exists()
    assert distinct_names([Path("/a/x/run"), Path("/b/x/run"), Path("/c")]) == [
        "a/x/run",
        "b/x/run",
        "/c",
    ]
    assert distinct_names([Path("/a"), Path("/b/../a")]) == ["a", "a"]


def test_what_a_power_cut_has_left_of_a_line_stays_apart_and_ends_no_reader(tmp_path):
    progress = tmp_path / "progress.jsonl"
    for left in (b"", b'{"event": "evalu\xc3', b"\xff\x00\x00", b"{}\n"):
        progress.write_bytes(left)
        append_line(progress, json.dumps(EVALUATION))
        append_line(progress, json.dumps(EVALUATION))
        assert read_evaluations(tmp_path) == [EVALUATION, EVALUATION]
    assert len(read_events(tmp_path)) == 3


@pytest.mark.parametrize(
    "more, expected",
    [
        ([], "; rlinf eval runs/x --episodes 50 --video out.mp4"),
        (["env=gym:Pendulum-v1"], "; rlinf eval runs/x --episodes 50 --video out.mp4"),
        (["env=maniskill:PushCube-v1"], "; rlinf eval runs/x --episodes 50"),
        (["station.robot=franka_fr3"], ""),
        (["station.robot=franka_twin"], ""),
    ],
)
def test_only_what_can_be_played_in_simulation_is_said_to_be_judged_so_and_filmed_what_can_be(
    more, expected
):
    assert evaluate.evaluation_hint(load_recipe("sim_sac", more), Path("runs/x")) == expected


def test_what_safetensors_cannot_write_names_the_file_and_the_remedy(tmp_path, monkeypatch, capsys):
    from safetensors import SafetensorError

    from rlinf_core.core.atomic_io import write_atomically

    def full(path):
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    def strange(path):
        raise SafetensorError("Error while serializing: something else")

    with pytest.raises(OSError) as error:
        write_atomically(tmp_path / "policy.safetensors", full)
    assert error.value.errno == errno.ENOSPC and "policy.safetensors" in error.value.filename
    with pytest.raises(OSError, match="something else"):
        write_atomically(tmp_path / "policy.safetensors", strange)


@pytest.mark.parametrize(
    "number, remedy",
    [
        (errno.ENOSPC, "Free disk space"),
        (errno.EROFS, "Choose a writable folder"),
        (errno.ENAMETOOLONG, "255 bytes"),
    ],
)
def test_what_the_system_refuses_has_a_remedy(number, remedy, monkeypatch, capsys):
    def refuse(argv):
        raise OSError(number, os.strerror(number), "/x/y")

    monkeypatch.setattr(main, "run", refuse)
    assert main.main(["status"]) == 1
    error = capsys.readouterr().err
    assert (
        error.startswith(f"rlinf: /x/y: {os.strerror(number)}. ")
        and remedy in error
        and error.count("\n") == 1
    )
