import json

import numpy as np
import pytest

from rlinf_core.core.errors import SpecError
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec


def test_a_spec_survives_json_and_keeps_its_hash(task):
    again = StationSpec.from_dict(json.loads(json.dumps(task.spec.to_dict())))
    assert again == task.spec and again.hash == task.spec.hash and not again.difference(task.spec)


def test_the_hash_is_of_numbers_not_of_how_they_were_written():
    def spec(one):
        array_spec = ArraySpec("at", (2,), low=(-one,), high=(one,))
        return StationSpec(
            (array_spec,), ActionSpec("tcp_delta", ("dx",), (one,), ("m",)), 10 * one
        )

    assert (
        spec(1) == spec(1.0)
        and spec(1).hash == spec(1.0).hash == StationSpec.from_dict(spec(1).to_dict()).hash
    )
    assert spec(1).hash != spec(1.5).hash


def test_words_may_say_what_a_number_without_bounds_is_called(task):
    """And the hash is as ever, by which policies and recordings are known."""
    array_spec = ArraySpec("at", (2,), low=(-np.inf, 0.0), high=(np.inf,), take="-Infinity")
    spec = StationSpec(
        (array_spec,), ActionSpec("tcp_delta", ("dx",), (0.02,), ("m",)), 10.0, 'to "Infinity"'
    )
    data = spec.to_dict()
    assert StationSpec.from_dict(json.loads(json.dumps(data, allow_nan=False))) == spec
    assert (data["observation"][0]["low"], data["observation"][0]["high"]) == (
        ["-inf", 0.0],
        ["inf"],
    )
    assert (
        StationSpec((ArraySpec("at", (2,)),), spec.action, 10.0, spec.instruction).hash
        == "f15b373d241f"
    )


def test_the_hash_ignores_wording_and_nothing_else(task):
    other = task.with_images({"front": (64, 64)}).spec
    assert other.hash != task.spec.hash
    assert "observation 'front': absent" in task.spec.difference(other)


def test_values_are_checked_by_name_shape_and_finiteness():
    spec = ArraySpec("force", (3,), unit="N")
    assert spec.check([1, 2, 3]).dtype == np.float32
    with pytest.raises(SpecError, match=r"'force': expected shape \(3,\), got \(2,\)"):
        spec.check([1, 2])
    with pytest.raises(SpecError, match="finite"):
        spec.check([1, np.nan, 3])


def test_actions_scale_to_si_and_are_clipped_to_what_is_declared(task):
    action = task.spec.action
    assert action.to_si(np.array([2.0, -0.5, 0.0])) == pytest.approx([0.02, -0.01, 0.0])
    assert action.from_si(action.to_si(np.array([0.3, -0.5, 1.0]))) == pytest.approx(
        [0.3, -0.5, 1.0]
    )
