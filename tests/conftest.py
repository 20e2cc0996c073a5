import gc
import json
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from rlinf_core.interlock import load_limits
from rlinf_core.tasks.task import load_task
from tests.domains import shell_domain

# a shell's background jobs ignore SIGINT, and so do their children
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# gRPC would restart its threads in a forked child and abort it before exec
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# by default Ray's workers have the lowest priority and stall when other programs compute
os.environ.setdefault("RAY_worker_niceness", "0")
# not the domain of the user's shell, where a robot would receive the messages of tests
os.environ["ROS_DOMAIN_ID"] = str(shell_domain(os.environ.get("PYTEST_XDIST_WORKER", "")))
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
EVIDENCE = pytest.StashKey[list]()
SESSION = pytest.StashKey[pytest.Session]()
settings.register_profile("untimed", deadline=None)  # a busy machine must not fail a test
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def task():
    return load_task("configs/tasks/peg_insertion.yaml")


@pytest.fixture(scope="session")
def limits():
    return load_limits("sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml")


@pytest.fixture
def random():
    return np.random.default_rng(0)


@pytest.fixture
def default_port_free(monkeypatch):
    """Let the trainer's default port count as free, even if a trainer of the user listens on it."""
    from rlinf_core.deploy.bridge import PORT
    from rlinf_core.launch import preflight

    why_taken = preflight.listen_failure
    monkeypatch.setattr(
        preflight, "listen_failure", lambda host, port: why_taken(host, 0 if port == PORT else port)
    )


def pytest_addoption(parser):
    parser.addoption(
        "--evidence", default="", help="write the figures of the safety tests to this JSON file"
    )


def pytest_collection_modifyitems(items):
    for path in {item.path for item in items if item.get_closest_marker("ros")}:
        if not re.search(r"mark\.ros\b", path.read_text()):
            raise pytest.UsageError(
                f"{path}: expected pytest.mark.ros in these words: scripts/test_all.sh looks for "
                f"them"
            )
    for item in items:
        if item.get_closest_marker("timed") or item.get_closest_marker("ros"):
            # one repetition, as `colcon test --retest-until-pass 1`
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))


def pytest_collection_finish():
    gc.freeze()  # the collector skips the thousands of tests from now on


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("rerun", ()):
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = (crash.message if crash else report.longreprtext).splitlines() or [""]
        terminalreporter.write_line(f"{report.nodeid}: failed at first: {lines[0]}")


@pytest.fixture
def evidence(request):
    """Record a measured value for docs/reference/safety_evidence.md.

    evidence("S5", "1 tick", "1 tick")
    """
    entries = request.config.stash.setdefault(EVIDENCE, [])

    def keep(requirement, measured, bound):
        entries.append(
            {
                "requirement": requirement,
                "measured": measured,
                "bound": bound,
                "test": request.node.nodeid,
            }
        )

    return keep


def pytest_sessionfinish(session):
    session.config.stash[SESSION] = session
    path = session.config.getoption("--evidence")
    if path:
        Path(path).write_text(json.dumps(session.config.stash.get(EVIDENCE, []), indent=1))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Exit without destructors, because those of the middleware sometimes abort a passed process.

    Results are printed and written by now. A process of mutmut must go on.
    """
    stays = hasattr(config, "workerinput") or config.pluginmanager.hasplugin(
        "scripts.quickest_first"
    )
    if "rclpy" in sys.modules and SESSION in config.stash and not stays:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(config.stash[SESSION].exitstatus))
