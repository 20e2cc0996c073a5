import contextlib
import sys

import isaaclab

LAUNCHED = []


if isaaclab.__version__.startswith("2."):

    class AppLauncher:
        def __init__(self, headless, enable_cameras, device):
            assert "isaaclab_tasks" not in sys.modules  # the application comes first
            self.app = object()
            LAUNCHED.append(self.app)
else:

    class AppLauncher:
        def __init__(self, **arguments):
            print("AppLauncher is deprecated; use isaaclab.app.launch_simulation.", file=sys.stderr)
            sys.exit(1)  # as 3.0 does where Isaac Sim is not installed

    @contextlib.contextmanager
    def launch_simulation(cfg, launcher_args=None):
        assert cfg is not None and {*launcher_args} == {"enable_cameras", "device"}
        # as where Isaac Sim is missing (isaaclab_physx/app/kit_launcher.py:919)
        if launcher_args["device"] == "cuda:9":
            sys.exit(1)
        LAUNCHED.append(cfg)
        try:
            yield None
        finally:
            LAUNCHED.remove(cfg)
