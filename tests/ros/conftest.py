"""A node of the station as a process, with the test in place of all others."""

import contextlib
import faulthandler
import gc
import os
import threading
import time

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

rclpy = pytest.importorskip("rclpy")

from rlinf_ros.workarounds import end_soon, single_threaded  # noqa: E402
from tests.ros.fork_server import ForkingSupervisor  # noqa: E402

CLOSES_S, EXITS_S = 120, 20
STATUS = pytest.StashKey[int]()
PRIORITY = 2  # below the nodes that command, observe and plan


def keep_time():
    """Give all threads of this process a real-time priority, if the system grants it.

    The test stands in for an arm, a pendant or a finger, which do not wait for a busy core. Threads and
    processes that it starts later have no such priority.
    """
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(
                int(thread), os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY)
            )


class Peer:
    """A test's own node, and the processes that it supervises, in one ROS domain."""

    terminal = 2  # the stderr that pytest does not capture

    def __init__(self, folder, domain, station="station_a"):
        self.supervisor = ForkingSupervisor(folder, domain)
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node("peer", namespace=f"/{station}", context=self.context)
        # The executor of our nodes, which computes half as much as one with a wait set.
        self.executor = single_threaded(self.context)
        self.executor.add_node(self.node)
        self._over, self._live = threading.Event(), []
        keep_time()

    def every(self, seconds, do):
        """Call a function periodically, also while the test starts processes or waits."""

        def repeat():
            while not self._over.wait(seconds):
                do()

        self._live.append(threading.Thread(target=repeat, daemon=True))
        self._live[-1].start()
        keep_time()

    def spin(self, until, timeout_s=120.0, what="it"):
        """Spin until a condition holds.

        Args:
            what: the awaited thing for the error's text, or a function that returns it.
        """
        deadline = time.monotonic() + timeout_s
        while not until():
            self.executor.spin_once(timeout_sec=0.02)
            self.supervisor.poll()
            assert time.monotonic() < deadline, (
                f"waited {timeout_s} s for {what() if callable(what) else what}"
            )

    def meet(self, *publishers, by=(), timeout_s=90.0):
        """Wait until each publisher is matched with the nodes in ``by`` and with all known subscribers.

        A count alone would not suffice: a killed node counts until it is missed, and a test may subscribe to
        its own topics.
        """

        def subscribers(publisher):
            listeners = self.node.get_subscriptions_info_by_topic(publisher.topic_name)
            return [listener.node_name.removesuffix("_inputs") for listener in listeners]

        def missing():
            return {
                sender.topic_name: (subscribers(sender), sender.get_subscription_count())
                for sender in publishers
                if not set(by) <= set(subscribers(sender))
                or sender.get_subscription_count() < max(1, len(subscribers(sender)))
            }

        self.spin(
            lambda: not missing(),
            timeout_s,
            lambda: f"{', '.join(by) or 'somebody'} to listen: {missing()}",
        )

    def for_s(self, seconds):
        end = time.monotonic() + seconds
        self.spin(lambda: time.monotonic() > end)

    def close(self):
        """Destroy the test's own node, then stop the processes.

        Fast DDS may deadlock here (eProsima/Fast-DDS#6502), where no Python code and no time limit of pytest
        runs. After two minutes the process prints its stacks and exits.
        """
        faulthandler.dump_traceback_later(CLOSES_S, exit=True, file=self.terminal)
        try:
            self._over.set()
            for thread in self._live:
                thread.join()
            self.executor.shutdown()
            # Actions would keep the node alive until this process ends.
            for action in [*self.node.waitables]:
                action.destroy()
            self.node.destroy_node()
            rclpy.try_shutdown(context=self.context)
        finally:
            faulthandler.cancel_dump_traceback_later()
            self.supervisor.stop()


@contextlib.contextmanager
def peer_in(folder, domain, station="station_a"):
    gc.collect()
    # Without this a collection over all imported modules stops the peer for a second.
    gc.freeze()
    peer = Peer(folder, domain, station)
    try:
        yield peer
    finally:
        peer.close()


@pytest.fixture(autouse=True)
def clear_old_faults(request):
    """Clear a fault that an earlier test left at a shared station."""
    for name in {"station", "bench"}.intersection(request.fixturenames):
        if ends_faults := getattr(request.getfixturevalue(name), "ends_faults", None):
            ends_faults()


@pytest.hookimpl(trylast=True)  # after the plug-in that stores the key
def pytest_configure(config):
    Peer.terminal = config.stash.get(fault_handler_stderr_fd_key, Peer.terminal)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    session.config.stash[STATUS] = int(exitstatus)


def pytest_unconfigure(config):
    """Exit soon: Fast DDS may deadlock when this process exits (eProsima/Fast-DDS#6502).

    A process of mutmut continues.
    """
    stays = hasattr(config, "workerinput") or config.pluginmanager.hasplugin(
        "scripts.quickest_first"
    )
    if STATUS in config.stash and not stays:
        end_soon(config.stash[STATUS], EXITS_S)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the last lines of its processes' logs to a failed test."""
    report = yield
    if report.when == "call" and report.failed:
        peers = {
            id(peer): peer
            for arg in item.funcargs.values()
            if isinstance(peer := getattr(arg, "peer", arg), Peer)
        }
        for peer in peers.values():
            for log in sorted((peer.supervisor.run_dir / "logs").iterdir()):
                report.sections.append((log.name, log.read_text(errors="replace")[-2000:]))
    return report


@pytest.fixture
def peer(tmp_path, request):
    with peer_in(tmp_path, request.node.get_closest_marker("domain").args[0]) as peer:
        yield peer
