import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock import limits_file, load_limits, with_values
from tests.interlock.conftest import limits

SIMULATED = "sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml"
GOOD = yaml.safe_load(Path(SIMULATED).read_text())


def load(tmp_path, **changes):
    data = {key: value for key, value in (GOOD | changes).items() if value is not None}
    path = tmp_path / "limits.yaml"
    path.write_text(yaml.safe_dump(data))
    return load_limits(path)


def test_what_is_the_same_has_one_hash_however_it_is_said(tmp_path):
    same = with_values(
        limits(), {"contact_samples": 2, "refusals_to_fault": 3, "stale_state": 0.05}
    )
    assert same.hash == limits().hash != with_values(limits(), {"contact_samples": 1}).hash
    assert load(tmp_path, contact_samples=2).hash == load(tmp_path).hash


def test_the_shipped_limits_load(tmp_path):
    assert load(tmp_path).speed == 0.25


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"speed": None}, "'speed' is missing: largest speed"),
        ({"sped": 0.1}, "unknown limit 'sped' (did you mean 'speed'?)"),
        ({"speed": float("inf")}, "'unlimited', spelled out"),
        ({"speed": 9.0}, "expected a number in [0.001, 3.0] m/s"),
        ({"speed": "fast"}, "got 'fast'"),
        ({"speed": True}, "got True"),
        ({"box_low": [0.9, 0, 0]}, "box is inverted in x"),
        ({"box_low": [0.3, 0.0]}, "three numbers"),
    ],
)
def test_bad_limits_are_refused_with_the_line_and_the_fix(tmp_path, changes, message):
    with pytest.raises(RecipeError, match="limits.yaml") as error:
        load(tmp_path, **changes)
    assert message in str(error.value)


def test_unlimited_must_be_spelled_out(tmp_path):
    assert load(tmp_path, divergence="unlimited").divergence == float("inf")


def test_the_hash_changes_with_any_limit():
    assert limits().hash != replace(limits(), speed=0.24).hash


def test_s01_the_interlock_process_imports_nothing_heavy():
    code = (
        "import sys, rlinf_interlock.interlock; print([m for m in ('torch', 'ray', 'grpc', 'cv2', "
        "'mujoco', 'gymnasium') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, check=True
    ).stdout
    assert out.strip() == "[]"


def test_a_limit_that_stands_twice_is_refused_and_no_pydantic_is_loaded(tmp_path):
    path = tmp_path / "limits.yaml"
    path.write_text(yaml.safe_dump(GOOD) + "speed: 0.1\n")
    with pytest.raises(
        RecipeError,
        match=rf"limits.yaml, line {len(path.read_text().splitlines())}: 'speed' occurs twice",
    ):
        load_limits(path)
    code = (
        f"import sys; from rlinf_core.interlock import load_limits; load_limits('{SIMULATED}'); "
        "print([name for name in ('pydantic', 'torch', 'ray', 'hydra') if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout
        == "[]\n"
    )


def test_limits_and_how_loose_they_may_be_set_are_of_one_reading(tmp_path, monkeypatch):
    """The file may be a link that is swapped, so it is not read twice."""
    for name, speed in (("one", 0.2), ("other", 0.4)):
        (tmp_path / f"{name}.yaml").write_text(
            f"extends: {os.path.abspath('robots/franka_fr3/limits.yaml')}\nspeed: {speed}\n"
        )
    link, read = tmp_path / "limits.yaml", limits_file.read_document
    link.symlink_to(tmp_path / "one.yaml")

    def swapped(path, *more):
        document = read(path, *more)
        if str(path) == str(link):
            link.unlink()
            link.symlink_to(tmp_path / "other.yaml")
        return document

    monkeypatch.setattr(limits_file, "read_document", swapped)
    limits, most = limits_file.load_with_loosest(link)
    assert (limits.speed, most.cone) == (0.2, limits.cone) and most.speed == 3.0
    assert limits_file.load_limits(link).speed == 0.4
