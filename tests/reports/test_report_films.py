"""A part that fails after training is a line of the report, which is always written."""

import errno
import json
import os
import subprocess
import sys

import pytest

from rlinf_core.cli import doctor
from rlinf_core.core import rendering
from rlinf_core.core.errors import RlinfError
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.recipes import load_recipe
from rlinf_core.reports import films, report
from rlinf_core.reports.curves import draw, shortened
from tests.reports.test_reports import RESULT, episode, phase

ERRORS = [
    RuntimeError("no EGL"),
    AttributeError("x"),
    OSError("full"),
    ImportError("libGL"),
    NotImplementedError("no camera"),
]
ENDING = ["learning_curve.png", "policy/policy_before.safetensors", "video", "learned.png"]


@pytest.fixture
def run(tmp_path):
    """Return the folder of a demo that is done, without the report."""
    for version in (1, 2):
        path = tmp_path / "policies_at_station" / policy_name(version)
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    events = [phase(0, "collect"), episode(20, 60), phase(4200, "done"), RESULT]
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return tmp_path


def fails(error):
    def raises(*_, **__):
        raise error

    return raises


@pytest.mark.parametrize("error", ERRORS)
def test_a_renderer_that_fails_leaves_a_line(tmp_path, monkeypatch, error):
    monkeypatch.setattr(films, "_side_by_side", fails(error))
    line = films.film_policies(load_recipe("demo"), tmp_path, {}, "")
    assert line == f"No video: {type(error).__name__}: {error}"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    "part, name",
    [
        ("_curve", ENDING[0]),
        ("_keep_policy", ENDING[1]),
        ("_film", ENDING[2]),
        ("write_poster", ENDING[3]),
    ],
)
def test_a_part_that_fails_is_a_line_of_a_demos_report(run, monkeypatch, part, name, error):
    monkeypatch.setattr(films, "_film", lambda *_: "the film")
    monkeypatch.setattr(films if part == "_film" else report, part, fails(error))
    printed = report.write_report(load_recipe("demo"), run)
    text = (run / "report.md").read_text()
    assert f"No {name}: {type(error).__name__}: {error}" in text and "100%" in text
    assert printed.startswith("success before RL 50%") and printed.endswith(
        f"report: {run / 'report.md'}"
    )
    assert json.loads((run / "report.json").read_text())["success_after"] == 1.0


def test_a_policy_that_is_missing_is_named_with_the_remedy(run):
    missing = run / "policies_at_station" / policy_name(2)
    missing.unlink()
    printed = report.write_report(load_recipe("demo"), run)
    line = (
        f"No policy/policy.safetensors: expected {missing}. Give the station and the director "
        f"the same --out"
    )
    assert line in printed and line in (run / "report.md").read_text()
    assert (run / "policy/policy_before.safetensors").exists()


def test_a_part_of_a_film_does_not_stay(run, monkeypatch):
    def full(*_):
        (run / "before_after.mp4").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(films, "_film", full)
    report.write_report(load_recipe("demo"), run)
    assert "No space left" in (run / "report.md").read_text() and not list(
        run.glob("before_after*")
    )


def test_a_disk_that_takes_no_report_is_one_error_with_the_result(run, monkeypatch):
    monkeypatch.setattr(
        report, "write_atomically", fails(OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(RlinfError) as error:
        report.write_report(load_recipe("demo"), run)
    assert "No space left" in str(error.value) and "after RL 100%" in str(error.value)


def test_a_film_that_fills_the_disk_leaves_the_report_that_is_there(run, monkeypatch):
    calls, write = [], report.write_atomically

    def until_the_film(path, text):
        calls.append(path)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text)

    monkeypatch.setattr(films, "_film", lambda *_: "the film")
    monkeypatch.setattr(report, "write_atomically", until_the_film)
    assert "No films in report.md: OSError" in report.write_report(load_recipe("demo"), run)
    assert report.NO_FILM_YET in (run / "report.md").read_text()


def test_a_run_without_a_result_is_one_error(run):
    (run / "progress.jsonl").write_text(json.dumps(phase(0, "collect")) + "\n")
    with pytest.raises(RlinfError, match="expected the result of the run in progress.jsonl"):
        report.write_report(load_recipe("demo"), run)


@pytest.mark.parametrize("part, name", [("draw", "learning_curve.png"), ("_film", "video")])
def test_a_part_that_fails_is_a_line_of_a_training_report(tmp_path, monkeypatch, part, name):
    entry = {
        "event": "evaluation",
        "env_steps": 0,
        "updates": 0,
        "return": 1.0,
        "success": 0.5,
        "episodes": 2,
        "seconds": 1.0,
        "policy_version": 1,
    }
    events = [entry, entry | {"env_steps": 100, "policy_version": 2}]
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    monkeypatch.setattr(films, "_film", lambda *_: "the film")
    monkeypatch.setattr(films if part == "_film" else report, part, fails(RuntimeError("broken")))
    printed = report.write_training_report(load_recipe("sim_rlpd"), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert f"No {name}: RuntimeError: broken" in text and "| 100 | 0 | 1.00 | 50% |" in text
    assert printed.startswith("success 50% at first")


@pytest.mark.parametrize("renderer", ["osmesa", "glfw", "disable"])
def test_a_run_in_simulation_keeps_its_report_whatever_renders(tmp_path, renderer):
    """A process of its own, as MuJoCo reads the variable once."""
    settings = [
        "simulation.environments=1",
        "simulation.env_steps=40",
        "simulation.evaluate_every=20",
        "simulation.evaluate_episodes=1",
        "algorithm.batch_size=8",
        "simulation.start_steps=10",
        "collect.episodes=1",
        "evaluate.filmed_episodes=1",
        "policy.hidden=[8]",
    ]
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "rlinf_core.cli.main",
            "train",
            "sim_rlpd",
            "--out",
            str(tmp_path / "run"),
            "--set",
            *settings,
        ],
        env={
            key: value
            for key, value in os.environ.items()
            if key not in ("DISPLAY", "PYOPENGL_PLATFORM")
        }
        | {"MUJOCO_GL": renderer},
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert "held-out episodes" in (tmp_path / "run/report.md").read_text()
    assert "Traceback" not in result.stderr


def test_an_unknown_renderer_is_refused_in_one_line(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "elg")
    words = r"MUJOCO_GL: expected one of egl, osmesa, glfw, disable, got 'elg' \(did you mean 'egl'"
    with pytest.raises(RlinfError, match=words):
        rendering.set_mujoco_gl()
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("PYOPENGL_PLATFORM", "osmesa")
    with pytest.raises(
        RlinfError, match="expected PYOPENGL_PLATFORM to be the same or unset, got 'osmesa'"
    ):
        rendering.set_mujoco_gl()
    monkeypatch.delenv("PYOPENGL_PLATFORM")
    monkeypatch.setattr(rendering, "has_library", lambda name: False)
    with pytest.raises(RlinfError, match="expected the library libEGL, found none"):
        rendering.set_mujoco_gl()


@pytest.mark.parametrize(
    "display, libraries, expected",
    [
        ("", ("egl", "osmesa"), "egl"),
        (":0", ("egl",), "egl"),
        ("", ("osmesa",), "osmesa"),
        (":0", (), "glfw"),
        ("", (), "disable"),
    ],
)
@pytest.mark.parametrize("before", [None, "", " "])
def test_an_unset_renderer_is_one_that_can_be_loaded(
    monkeypatch, before, display, libraries, expected
):
    monkeypatch.setenv("MUJOCO_GL", before or "")
    if before is None:
        monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.delenv("PYOPENGL_PLATFORM", raising=False)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setattr(rendering, "has_library", lambda name: name in libraries)
    assert rendering.set_mujoco_gl() == expected and os.environ["MUJOCO_GL"] == expected


@pytest.mark.parametrize(
    "configured, working, finding_text, fix",
    [
        ("egl", {"egl"}, "egl", ""),
        ("", {"egl", "osmesa"}, "egl", ""),
        ("foo", {"egl"}, "MUJOCO_GL=foo of this shell does not render", "export MUJOCO_GL=egl"),
        (
            "egl",
            {"osmesa"},
            "MUJOCO_GL=egl of this shell does not render",
            "export MUJOCO_GL=osmesa",
        ),
        ("", {"osmesa"}, "egl does not render", "export MUJOCO_GL=osmesa"),
        ("", set(), "egl does not render", "apt-get install libosmesa6 libegl1 libgl1"),
    ],
)
def test_the_doctor_names_a_renderer_that_does_not_work(
    monkeypatch, configured, working, finding_text, fix
):
    monkeypatch.setenv("MUJOCO_GL", configured)
    monkeypatch.setattr(rendering, "has_library", lambda name: True)
    monkeypatch.setattr(
        doctor, "_render_error", lambda name: "" if name in working else f"no {name}"
    )
    finding = doctor._rendering()
    assert finding.result.startswith(finding_text) and finding.fix == fix
    assert bool(finding.fix) == ("cameras and videos need it" in finding.result)


def test_the_doctor_quotes_what_mujoco_says():
    trouble = doctor._render_error("foo")
    assert trouble == "RuntimeError: invalid value for environment variable MUJOCO_GL: foo"


@pytest.mark.filterwarnings("error")
def test_a_long_name_leaves_room_for_the_curve(tmp_path):
    curve = [{"env_steps": at, "success": 0.5, "return": 1.0, "episodes": 2} for at in (0, 100)]
    draw({"n" * 200: [curve]}, tmp_path / "curve.png")
    assert shortened("a name") == "a name" and len(shortened("n" * 200)) < 70
