"""Structured settings survive their way through ROS parameters."""

import pytest

from rlinf_core.core.errors import RlinfError
from rlinf_core.specs.ros_parameters import flattened, from_parameters, to_parameters


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"kind": "joy"},
        {"rate": 30.0, "count": 3, "on": False, "name": ""},
        {"names": [], "sizes": [1, 2]},
        {"joints": {"b": {"id": 2}, "a": {"id": 1}}},
        {"": [0.0, 1.0]},
        {"goals": {"": {"pose": [0.5]}}},
        {"observation": [{"name": "x", "low": [-1.0, "inf"]}, {"name": "y", "low": []}]},
        {"points": [[0.0, 1.0], [2.0, 3.0]]},
        {"left/wrench": {"frame": "base", "tool": True}},
        {"buttons": {"0": "arm", "1": "disarm"}},
    ],
)
def test_a_document_comes_back_as_it_was_its_order_too(document):
    returned = from_parameters(flattened(to_parameters(document, "settings")))
    assert returned == document and list(returned) == list(document)
    assert list(returned.get("joints", {})) == list(document.get("joints", {}))


def test_every_parameter_has_a_type_of_ros():
    values = flattened(
        to_parameters({"a": [0, 0.5], "b": [True], "c": None, "d": {}, "e": ["x", 1]}, "x")
    )
    assert values == {"a": [0.0, 0.5], "b": [True], "e._0": "x", "e._1": 1}


def test_a_name_that_ros_would_divide_is_refused():
    with pytest.raises(
        RlinfError, match="options.cameras: expected a name without a dot.*got 'a.b'"
    ):
        to_parameters({"cameras": {"a.b": 1}}, "options")
    with pytest.raises(RlinfError, match="options.homes: expected a value for each item"):
        to_parameters({"homes": [None, 1]}, "options")
