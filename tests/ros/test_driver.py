"""The node that runs what a robot's YAML names: what it lacks."""

import sys

import pytest

from rlinf_drivers import driver

pytestmark = pytest.mark.ros


@pytest.mark.parametrize(
    "module, error",
    [
        ("", "expected a parameter file with 'module'"),
        ("my_arm.node", "expected the package 'my_arm'"),
        ("os.path", "expected a module with main()"),
        ("rlinf_drivers.franka", "expected the package 'franka_msgs'.* Run: rlinf messages"),
    ],
)
def test_what_a_driver_lacks_is_said_in_a_line(monkeypatch, tmp_path, module, error):
    (tmp_path / "parameters.yaml").write_text(f"/**: {{ros__parameters: {{module: '{module}'}}}}\n")
    monkeypatch.setattr(sys, "argv", ["driver", "--params-file", str(tmp_path / "parameters.yaml")])
    for name in ("rlinf_drivers.franka", "franka_msgs", "franka_msgs.msg"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Without(), *sys.meta_path])
    with pytest.raises(SystemExit, match=error):
        driver.main()


class Without:
    """No franka_msgs, as where nothing has built it."""

    def find_spec(self, name, *_):
        if name == "franka_msgs":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
