"""The end of a station: in order, silent, and with every ended episode closed.

It needs no trainer.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rlinf_msgs.msg import EpisodeEvent

from rlinf_core.launch.graph import station_processes
from rlinf_core.launch.supervisor import Supervisor, command_line
from rlinf_core.recipes import load_recipe
from rlinf_station import uplink
from rlinf_station.recorder import Recorder
from rlinf_station.remote_policy import RemotePolicyNode
from tests.ports import free_port
from tests.ros.demo_runs import Run
from tests.ros.stand_ins import listen

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]


WORDS = re.compile(r"Traceback|InvalidHandle|RCLError|context is not valid|Fatal Python error")


def tracebacks(folder):
    """Return for each log the lines around its first traceback."""
    texts = {log.name: log.read_text() for log in (folder / "logs").iterdir()}
    matches = {name: WORDS.search(text) for name, text in texts.items()}
    return {
        name: texts[name][max(0, at.start() - 300) : at.end() + 3000].splitlines()
        for name, at in matches.items()
        if at
    }


def all_quiet(codes, folder):
    """No process said anything, and each ended with 0; where one did not, its log is told."""
    assert not tracebacks(folder)
    loud = {
        name: (folder / f"logs/{name}.log").read_text()[-6000:]
        for name, code in codes.items()
        if code
    }
    assert not loud, (codes, loud)


def all_at_once(run, number):
    """Interrupt every process of the group at the same time, repeatedly, like ros2 launch."""
    nodes = {name: child.popen for name, child in run.supervisor.children.items()}
    end = time.time() + 20
    while any(popen.poll() is None for popen in nodes.values()) and time.time() < end:
        for popen in nodes.values():
            popen.send_signal(number)
        time.sleep(0.02)
    stuck = [name for name, popen in nodes.items() if popen.poll() is None]
    for name in stuck:
        nodes[name].send_signal(signal.SIGABRT)
        nodes[name].wait(5)
    assert not stuck, "\n".join((run.folder / f"logs/{name}.log").read_text() for name in stuck)
    return {name: popen.returncode for name, popen in nodes.items()}


@pytest.mark.slow
@pytest.mark.domain(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_episode_that_has_ended_is_closed_whatever_is_asked_to_end(tmp_path, peer, number):
    events = listen(peer, EpisodeEvent, "episode")
    with Run(
        tmp_path, "collect.episodes=50", domain=60, trains=False, supervisor=Supervisor
    ) as run:
        peer.spin(
            lambda: sum(e.kind == EpisodeEvent.CLOSED for e in events) >= 2, what="two episodes"
        )
        before = len(events)
        peer.spin(
            lambda: any(e.kind == EpisodeEvent.ENDED for e in events[before:]),
            what="an episode's end",
        )
        codes = all_at_once(run, number)
    ended = {e.episode_id for e in events if e.kind == EpisodeEvent.ENDED}
    spool = run.folder / "spool"
    stored = {path.name for folder in ("closed", "sent") for path in (spool / folder).iterdir()}
    assert ended <= stored and not list((spool / "open").iterdir())
    all_quiet(codes, run.folder)


@pytest.mark.domain(61)
def test_an_episode_in_its_middle_is_set_aside_with_the_reason(tmp_path, peer):
    events = listen(peer, EpisodeEvent, "episode")
    with Run(
        tmp_path, "collect.episodes=50", domain=61, trains=False, supervisor=Supervisor
    ) as run:
        peer.spin(
            lambda: sum(e.kind == EpisodeEvent.CLOSED for e in events) >= 1, what="an episode"
        )
        peer.spin(
            lambda: (
                events[-1].kind == EpisodeEvent.STARTED
                and any((run.folder / "spool/open").iterdir())
            ),
            what="the next, in the recorder",
        )
        codes = all_at_once(run, signal.SIGINT)
        peer.for_s(0.5)
    begun = {e.episode_id for e in events if e.kind == EpisodeEvent.STARTED}
    stored, broken = (
        {path.name for folder in folders for path in (run.folder / "spool" / folder).iterdir()}
        for folders in (("closed", "sent"), ("broken",))
    )
    assert begun == stored | broken and not list((run.folder / "spool/open").iterdir())
    details = {e.episode_id: e.detail for e in events if e.kind == EpisodeEvent.ABORTED}
    assert all("was stopped" in details[name] for name in broken)
    all_quiet(codes, run.folder)


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_that_the_middleware_holds_for_ever_ends_all_the_same(code):
    """In Fast-DDS#6513 a call that holds Python's lock does not return."""
    end = (
        "import ctypes; from rlinf_ros.workarounds import end_soon; print('done'); "
        f"end_soon({code}, 0.3); ctypes.PyDLL(None).sleep(600)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", end], stdout=subprocess.PIPE, text=True, timeout=90
    )
    assert (ended.returncode, ended.stdout) == (code, "done\n")


@pytest.mark.parametrize(
    "after_s",
    [0.05, *(pytest.param(seconds, marks=pytest.mark.slow) for seconds in (0.5, 1.5)), 3.0],
)
def test_a_station_that_is_still_starting_ends_as_quietly(tmp_path, after_s):
    with Run(tmp_path, domain=62, trains=False, supervisor=Supervisor) as run:
        time.sleep(after_s)
        codes = all_at_once(run, signal.SIGINT)
    all_quiet(codes, run.folder)


@pytest.mark.domain(59)
def test_a_node_ends_with_whoever_started_it(tmp_path, peer):
    recipe = load_recipe("demo")
    environment = next(p for p in station_processes(recipe, tmp_path) if p.name == "environment")
    code = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); "
        "p.wait()"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, *command_line(environment, tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=peer.supervisor.environment,
    )
    node = int(launcher.stdout.readline())
    peer.spin(lambda: peer.node.count_publishers("timestep"), what="the environment")
    launcher.kill()
    launcher.wait()
    peer.spin(lambda: not peer.node.count_publishers("timestep"), 60, "its end, in order")
    peer.spin(
        lambda: (
            not Path(f"/proc/{node}/stat").exists()
            or " Z " in Path(f"/proc/{node}/stat").read_text()
        ),
        60,
        "the end of its process",
    )


@pytest.mark.parametrize(
    "number, group",
    [
        (signal.SIGINT, True),
        *(
            pytest.param(number, False, marks=pytest.mark.slow)
            for number in (signal.SIGINT, signal.SIGTERM)
        ),
    ],
)
def test_ctrl_c_ends_a_whole_demo_in_order(tmp_path, number, group):
    settings = [f"bridge.port={free_port()}", "station.domain_id=63"]
    with open(tmp_path / "demo.txt", "w") as log:
        demo = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rlinf_core.cli.main",
                "demo",
                "demo_tiny",
                "--quiet",
                "--out",
                str(tmp_path / "run"),
                "--set",
                *settings,
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    progress, end = tmp_path / "run/progress.jsonl", time.time() + 90
    while not (progress.exists() and '"episode"' in progress.read_text()):
        assert demo.poll() is None and time.time() < end, (tmp_path / "demo.txt").read_text()
        time.sleep(0.1)
    (os.killpg if group else os.kill)(demo.pid, number)
    try:
        assert demo.wait(90) == 130
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
    assert (
        not tracebacks(tmp_path / "run") and "Traceback" not in (tmp_path / "demo.txt").read_text()
    )
    assert not list((tmp_path / "run/spool/open").iterdir())
    assert '"stopped"' in progress.read_text().splitlines()[-1]


def test_an_uplink_that_ends_publishes_no_policy_that_comes_meanwhile(monkeypatch):
    """Its thread once used a publisher during its destruction."""
    monkeypatch.setattr(uplink, "last_policy", lambda folder: None)
    monkeypatch.setattr(uplink, "prune_policies", lambda *_: None)
    published, stopping = [], threading.Event()

    def next_policy(version, folder, base):
        stopping.set()
        return SimpleNamespace(version=3, path="a", sha256="b")

    node = SimpleNamespace(
        active=True,
        stopping=stopping,
        lock=threading.Lock(),
        version=-1,
        policy=SimpleNamespace(version=-1),
        policies="",
        policies_gb=1.0,
        reporter=SimpleNamespace(next_policy=next_policy),
        updates=SimpleNamespace(publish=published.append),
        _record_trouble=lambda *_: None,
    )
    uplink.Uplink._fetch(node)
    assert not published


def test_a_remote_policy_that_ends_publishes_no_answer_that_comes_meanwhile():
    node = SimpleNamespace(lock=threading.RLock(), stopping=threading.Event(), times_ms=[])
    node.stopping.set()
    RemotePolicyNode._on_chunk(node, None, None, {}, 0.1)
    node.status = SimpleNamespace(error="")
    RemotePolicyNode._set_error(node, "no answer")
    assert not node.times_ms and not node.status.error


def test_a_recorder_that_has_finished_takes_no_message_of_nodes_that_end_later():
    """In one process the interlock ends last. Its messages met a node that was being destroyed."""
    items = []
    recorder = SimpleNamespace(
        recording=SimpleNamespace(writer=None),
        worker=SimpleNamespace(idle=True, put=lambda *item, anyway=False: items.append(item)),
        session=SimpleNamespace(is_closed=True),
        requested_s=1.0,
        has_finished=False,
    )
    assert Recorder.finish(recorder)
    Recorder._put(recorder, "safety", SimpleNamespace(raw=b"", at_ns=0))
    Recorder._on_session_topic(recorder, "/diagnostics", b"")
    assert not items and Recorder.finish(recorder)
