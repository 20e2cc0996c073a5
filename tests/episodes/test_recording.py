"""The messages of an episode, and the effect of a slow or full disk, without ROS."""

import errno
import os
import struct
import threading
import time
from types import SimpleNamespace

import pytest

from rlinf_core.episodes import read_episode
from rlinf_core.episodes.messages import ABORTED, CLOSED
from rlinf_core.episodes.record import GRACE_S, Recording, _keep_newest, _stamp_ns
from rlinf_core.episodes.ring import Message, Ring
from rlinf_core.episodes.spool import Spool
from rlinf_core.episodes.worker import Worker
from rlinf_core.reports.recordings import missed_images
from rlinf_station.recorder import BlackBox, Recorder
from tests.messages import NS, raw_messages


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


@pytest.fixture
def reports():
    return []


@pytest.fixture
def recording(spool, reports):
    return Recording(spool, lambda *what: reports.append(what))


def play(recording, task, episode_id="a-1", steps=5, moves=5, **how):
    """Everything of an episode, to the recording; the arm is held after so many steps."""
    kinds = []

    def note(topic, number, message):
        kinds.append(
            SimpleNamespace(
                kind=message.kind, episode_id=message.episode_id, steps=message.steps, detail=""
            )
            if topic == "episode"
            else None
        )

    messages = raw_messages(task.spec, episode_id, steps=steps, change=note, **how)
    for (topic, kind, ns, raw), event in zip(messages, kinds, strict=True):
        if not topic.endswith("applied") or ns < moves * NS // 10:
            recording.take(Message(topic, kind, ns, raw), event)


def test_an_episode_is_closed_once_it_is_complete(recording, spool, task, reports):
    play(recording, task)
    assert [(kind, name, why) for kind, name, _, why in reports] == [(CLOSED, "a-1", "")]
    assert len(read_episode(spool.root / "closed/a-1")) == 5


def test_a_message_that_is_too_large_ends_the_episode_with_the_reason(
    recording, task, reports, monkeypatch
):
    monkeypatch.setattr("rlinf_core.episodes.spool.MAX_MESSAGE_BYTES", 10)
    play(recording, task)
    assert reports[0][:2] == (ABORTED, "a-1")
    assert "episode a-1: expected messages of at most 0 MiB" in reports[0][3]


def test_what_is_not_complete_after_a_grace_is_closed_where_the_arm_moved_and_else_aborted(
    recording, task, reports
):
    play(recording, task, "held", moves=3)
    assert not reports
    tell_safety(recording, stamp_s=0.5, at_s=0.6)
    recording.close_if_due(round((0.6 + GRACE_S + 0.01) * NS))
    assert [what[:2] for what in reports] == [(CLOSED, "held")], "from then on it was held"
    play(recording, task, "idle", moves=0)
    recording.close_if_due(6 * NS)
    assert (
        reports[-1][:2] == (ABORTED, "idle")
        and "applied no action: the arm had no commander" in reports[-1][3]
    )
    play(recording, task, "torn", leave=("timestep",))
    recording.close_if_due(6 * NS)
    assert reports[-1][:2] == (ABORTED, "torn") and "expected 6 time steps, got 5" in reports[-1][3]


def tell_safety(recording, stamp_s, at_s):
    """The interlock's state of that time, heard at another."""
    stamp = struct.pack("<4siI", b"\x00\x01\x00\x00", *divmod(round(stamp_s * NS), NS))
    recording.take(
        Message(
            "/station/safety", "rlinf_msgs/msg/SafetyState", round(at_s * NS), stamp + bytes(60)
        )
    )


def test_actions_that_a_busy_machine_brings_late_are_waited_for(recording, spool, task, reports):
    """Eleven of fifteen actions came within the grace, and the episode was closed without a word."""
    messages = raw_messages(task.spec, "a-1", steps=5)
    late = [
        Message(topic, kind, round(4.9 * NS), raw)
        for topic, kind, ns, raw in messages
        if topic.endswith("applied") and ns >= 3 * NS // 10
    ]
    play(recording, task, "a-1", moves=3)
    tell_safety(recording, stamp_s=0.2, at_s=0.6)
    recording.close_if_due(round(4.8 * NS))
    assert not reports, "the interlock's state is not yet of the last time step"
    for message in late:
        recording.take(message)
    assert [what[:2] for what in reports] == [(CLOSED, "a-1")]
    assert len(read_episode(spool.root / "closed/a-1").sources) == 5
    assert set(read_episode(spool.root / "closed/a-1").sources) == {"policy"}
    play(recording, task, "b-1", moves=3)
    tell_safety(recording, stamp_s=0.4, at_s=3.0)
    recording.close_if_due(round((3.0 + GRACE_S - 0.01) * NS))
    assert len(reports) == 1, "the grace begins with the interlock's state"
    recording.close_if_due(round((3.0 + GRACE_S + 0.01) * NS))
    assert reports[-1][:2] == (CLOSED, "b-1")


def test_two_actions_in_one_time_step_do_not_stand_for_the_last_one(
    recording, spool, task, reports
):
    """A person takes over within the second; the last comes after the end is told, as topics are
    not ordered.
    """
    messages, late = raw_messages(task.spec, "a-1", steps=5), []
    for topic, kind, ns, raw in messages:
        applied = topic.endswith("applied")
        if applied and ns == 4 * NS // 10:
            late.append(Message(topic, kind, ns, raw))
            continue
        is_event = topic.endswith("episode")
        event = (
            SimpleNamespace(kind=int(ns > 0), episode_id="a-1", steps=5, detail="")
            if is_event
            else None
        )
        for _ in range(1 + (applied and ns == NS // 10)):
            recording.take(Message(topic, kind, ns, raw), event)
    assert not reports, "five actions, and none of the last time step"
    recording.take(late[0])
    assert [(kind, name) for kind, name, _, _ in reports] == [(CLOSED, "a-1")]
    assert read_episode(spool.root / "closed/a-1").sources[-1] == "policy"


def test_whatever_a_disk_says_at_the_beginning_the_episode_is_given_up_aloud(
    recording, task, reports, monkeypatch
):
    def broken(_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr("rlinf_core.episodes.spool.shutil.disk_usage", broken)
        play(recording, task)
    assert [what[:2] for what in reports] == [
        (ABORTED, "a-1")
    ] and "Input/output error. Check the folder" in reports[0][3]
    play(recording, task, "next")
    assert reports[-1][:2] == (CLOSED, "next")


def test_what_comes_of_an_episode_that_was_given_up_is_no_part_of_the_next(
    recording, spool, task, reports
):
    """The last time steps of an aborted episode may arrive with the next one's first."""
    old = [
        Message(topic, kind, ns, raw)
        for topic, kind, ns, raw in raw_messages(task.spec, "a-1", steps=5)
    ]
    steps = [message for message in old if message.topic.endswith("timestep")]
    started = SimpleNamespace(kind=0, episode_id="a-1", steps=0, detail="")
    recording.take(old[0], started)
    for message in steps[:2]:
        recording.take(message)
    recording.abort("the disk is too slow")
    for message in steps[2:4]:
        recording.take(message)
    new = [
        Message(topic, kind, ns, raw)
        for topic, kind, ns, raw in raw_messages(task.spec, "b-1", steps=5)
    ]
    events = iter(
        [
            SimpleNamespace(kind=0, episode_id="b-1", steps=0, detail=""),
            SimpleNamespace(kind=1, episode_id="b-1", steps=5, detail=""),
        ]
    )
    for number, message in enumerate(new):
        recording.take(message, next(events) if message.topic.endswith("episode") else None)
        if number == 2:
            recording.take(steps[4])
    assert [what[:2] for what in reports] == [(ABORTED, "a-1"), (CLOSED, "b-1")]
    assert len(read_episode(spool.root / "closed/b-1")) == 5


@pytest.mark.parametrize(
    "name, message",
    [("../../outside", "plain name"), ("a-1", "closed/ already"), ("x" * 500, "plain name")],
)
def test_ids_that_cannot_be_had_are_aborted_and_the_next_episode_is_recorded(
    recording, spool, task, reports, name, message
):
    play(recording, task, "a-1")
    play(recording, task, name)
    assert reports[-1][:2] == (ABORTED, name) and message in reports[-1][3]
    play(recording, task, "next")
    assert (
        reports[-1][:2] == (CLOSED, "next") and len(read_episode(spool.root / "closed/next")) == 5
    )
    assert not list(spool.root.parent.glob("outside*"))


def test_an_id_that_is_open_already_ends_that_episode_and_is_recorded_anew(
    recording, spool, task, reports
):
    messages = raw_messages(task.spec)
    started = SimpleNamespace(kind=0, episode_id="a-1", steps=0, detail="")
    recording.take(Message(*messages[0][:2], 0, messages[0][3]), started)
    play(recording, task)
    assert [what[:2] for what in reports] == [(ABORTED, "a-1"), (CLOSED, "a-1")]


def test_a_disk_that_fails_at_the_end_aborts_the_episode(
    recording, spool, task, reports, monkeypatch
):
    def fails(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    play(recording, task)
    monkeypatch.undo()
    assert reports[-1][:2] == (ABORTED, "a-1") and "Free the disk" in reports[-1][3]
    play(recording, task, "next")
    assert reports[-1][:2] == (CLOSED, "next") and [path.name for path in spool.closed()] == [
        "next"
    ]


def test_a_ring_is_bounded_by_number_age_and_bytes():
    def fill(ring, sizes):
        for number, size in enumerate(sizes):
            ring.add(Message("t", "k", number * NS, bytes(size)))
        return [message.at_ns // NS for message in ring]

    assert fill(Ring(1000, max_messages=3), [1] * 6) == [3, 4, 5]
    assert fill(Ring(1000, seconds=2.0), [1] * 6) == [3, 4, 5]
    ring = Ring(1000)
    assert fill(ring, [200] * 8 + [10_000]) == [3, 4, 5, 6, 7] and ring.bytes == 1000, (
        "one absurd message forgets nothing"
    )
    assert len(ring.take_all()) == 5 and len(ring) == ring.bytes == 0


def test_what_comes_before_an_episode_is_bounded_by_bytes(recording, monkeypatch):
    for number in range(64):
        recording.early.add(
            Message("/station/timestep", "rlinf_msgs/msg/TimeStep", number, bytes(4 << 20))
        )
    assert recording.early.bytes <= 64 << 20


def test_the_black_box_is_bounded_by_bytes_and_writes_faults_of_any_name_within_one_second(
    tmp_path, task
):
    box = BlackBox(tmp_path / "faults", max_bytes=4000)
    for topic, kind, ns, raw in raw_messages(task.spec, steps=40):
        box.add(Message(topic, kind, ns, raw))
    folders = [
        box.write(cause) for cause in ("estop:pendant", "estop:pendant", "../" * 100, "ü\n" * 200)
    ]
    assert len({path.name for path in folders}) == 4 and all(
        path.parent == tmp_path / "faults/closed" for path in folders
    )
    assert 1000 < (folders[0] / f"{folders[0].name}.mcap").stat().st_size < 20_000


def test_the_worker_takes_no_more_than_it_may_hold_and_survives_what_it_handles():
    gate, handled, troubles = threading.Event(), [], []

    def handle(item):
        gate.wait(10)
        handled.append(item)
        if item == "bad":
            raise ValueError(item)

    worker = Worker(handle, lambda: None, troubles.append, max_bytes=100)
    assert [worker.put(name, 40) for name in ("a", "bad", "c")] == [True, True, False]
    assert worker.put("event", 40, anyway=True) and not worker.idle
    gate.set()
    end = time.monotonic() + 10
    while not worker.idle and time.monotonic() < end:
        time.sleep(0.01)
    assert (
        worker.idle
        and handled == ["a", "bad", "event"]
        and [str(error) for error in troubles] == ["bad"]
    )
    assert worker.put("later", 90)


def test_a_worker_rests_between_batches_until_something_urgent_comes(monkeypatch):
    monkeypatch.setattr("rlinf_core.episodes.worker.REST_S", 60.0)
    handled, first, last = [], threading.Event(), threading.Event()

    def handle(item):
        handled.append(item)
        first.set()
        if item == "event":
            last.set()

    worker = Worker(handle, lambda: None, print)
    worker.put("a", 1)
    assert first.wait(10)
    time.sleep(0.05)
    worker.put("b", 1)
    time.sleep(0.2)
    assert handled == ["a"], "no wake-up for each message"
    worker.put("event", 1, urgent=True)
    assert last.wait(10) and handled == ["a", "b", "event"]


def test_a_worker_that_has_looked_around_is_idle(monkeypatch):
    monkeypatch.setattr("rlinf_core.episodes.worker.POLL_S", 0.01)
    looks = []
    worker, end = Worker(print, lambda: looks.append(1), print), time.monotonic() + 10
    while len(looks) < 3:
        assert time.monotonic() < end
        time.sleep(0.01)
    while not worker.idle:
        assert time.monotonic() < end, "between two looks there is nothing to do"


@pytest.mark.slow
@pytest.mark.ros
@pytest.mark.timeout(120)
def test_no_message_is_lost_while_a_slow_disk_takes_the_recording_of_a_fault(tmp_path, monkeypatch):
    """In an episode at 100 Hz a fault is recorded, which waits a second for each fsync; the topics
    hold 50 messages.
    """
    rclpy = pytest.importorskip("rclpy")
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.parameter import Parameter
    from rlinf_msgs.msg import Applied, EpisodeEvent, SafetyState, TimeStep

    from rlinf_ros.qos import profile
    from rlinf_station import recorder as module

    rclpy.init(domain_id=94)
    parameters = [Parameter("spool", value=str(tmp_path / "spool"))]
    base, make_node = module.StationNode, module.StationNode.__init__
    monkeypatch.setattr(
        base, "__init__", lambda self, name: make_node(self, name, parameter_overrides=parameters)
    )
    node = module.Recorder()
    node.begin_life()
    monkeypatch.undo()
    peer, events = rclpy.create_node("peer"), []
    say = {
        topic: peer.create_publisher(kind, topic, profile(topic))
        for topic, kind in (
            ("timestep", TimeStep),
            ("applied", Applied),
            ("episode", EpisodeEvent),
            ("safety", SafetyState),
        )
    }
    peer.create_subscription(EpisodeEvent, "episode", events.append, profile("episode"))
    executors = [SingleThreadedExecutor(), SingleThreadedExecutor()]
    for executor, one in zip(executors, (node, peer), strict=True):
        executor.add_node(one)
        threading.Thread(target=executor.spin, daemon=True).start()

    def wait(until, seconds=90.0):
        end = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end, events
            time.sleep(0.01)

    def episode(name, steps):
        say["episode"].publish(EpisodeEvent(kind=EpisodeEvent.STARTED, episode_id=name))
        for number in range(steps + 1):
            say["timestep"].publish(TimeStep(episode_id=name, step_index=number))
            if number == 20:
                say["safety"].publish(SafetyState(state=SafetyState.FAULT, cause="estop"))
            if number < steps:
                say["applied"].publish(Applied(seq=number))
            time.sleep(0.01)
        say["episode"].publish(EpisodeEvent(kind=EpisodeEvent.ENDED, episode_id=name, steps=steps))

    flush = os.fsync
    try:
        wait(
            lambda: all(
                one.get_subscription_count() >= 1 + (topic == "episode")
                for topic, one in say.items()
            )
        )
        monkeypatch.setattr(os, "fsync", lambda handle: (time.sleep(1.0), flush(handle)))
        episode("one", 200)
        wait(
            lambda: [
                event
                for event in events
                if event.kind in (EpisodeEvent.CLOSED, EpisodeEvent.ABORTED)
            ],
            40,
        )
    finally:
        monkeypatch.undo()
        for executor, one in zip(executors, (node, peer), strict=True):
            executor.shutdown()
            one.destroy_node()
        rclpy.shutdown()
    assert [event.detail for event in events if event.kind == EpisodeEvent.ABORTED] == []
    assert len(list((tmp_path / "faults/closed").iterdir())) == 1


def test_where_too_much_waits_what_is_left_out_is_told_and_the_end_of_an_episode_never_is():
    recorder, put, full = Recorder.__new__(Recorder), [], [True]  # without ROS
    recorder.losing, recorder.refused, recorder.has_finished = False, 0, False

    def take(item, size, anyway=False, urgent=False):
        put.append((item[0], anyway))
        return anyway or not full[0]

    recorder.worker, recorder.recording = SimpleNamespace(put=take), SimpleNamespace(ended=None)
    for topic in ("applied", "applied", "episode"):
        recorder._put(topic, Message("t", "k", 7, b"x"))
    assert put == [("applied", False), ("", True), ("applied", False), ("episode", True)]
    full[0] = False
    recorder._put("applied", Message("t", "k", 8, b"x"))
    assert not recorder.losing


def test_time_steps_without_a_message_of_an_observed_topic_are_noted(spool, task, reports):
    """A topic that the task does not observe is noted only if the station has it."""
    observed = "/station_a/wrench"
    absent = "/station_a/joint_states"
    seldom = "/station_a/object_pose"
    recording = Recording(
        spool,
        lambda *what: reports.append(what),
        observed=[observed, "/station_a/current_pose"],
        sampled=[observed, absent, seldom],
    )
    messages = raw_messages(task.spec, "a-1", steps=5)
    for number, (topic, kind, ns, raw) in enumerate(messages):
        event = (
            SimpleNamespace(kind=int(number > 0), episode_id="a-1", steps=5, detail="")
            if topic.endswith("episode")
            else None
        )
        recording.take(Message(topic, kind, ns, raw), event)
        if topic.endswith("timestep") and ns < 5 * NS // 10:
            recording.take(
                Message("/station_a/current_pose", "geometry_msgs/msg/PoseStamped", ns, bytes(60))
            )
            for topic_name in (observed, seldom) if ns < 3 * NS // 10 else ():
                recording.take(
                    Message(topic_name, "geometry_msgs/msg/WrenchStamped", ns, bytes(60))
                )
    assert reports[-1][:2] == (CLOSED, "a-1")
    assert missed_images(spool.root / "closed/a-1") == {
        observed: "3",
        seldom: "3",
        "/station_a/current_pose": "1",
    }


def test_images_that_come_more_often_than_time_steps_are_none_that_was_missed(spool, task, reports):
    """A count of a camera is noted also where it is 0."""
    cameras = ["/station_a/camera/front/image", "/station_a/camera/wrist/image"]
    recording = Recording(spool, lambda *what: reports.append(what), cameras=cameras)

    for number, (topic, kind, ns, raw) in enumerate(raw_messages(task.spec, "a-1", steps=2)):
        event = (
            SimpleNamespace(kind=int(number > 0), episode_id="a-1", steps=2, detail="")
            if topic.endswith("episode")
            else None
        )
        recording.take(Message(topic, kind, ns, raw), event)
        wrist = [f"{cameras[1]}/compressed"] * (number == 1)
        images = (cameras[0], f"{cameras[0]}/compressed", *wrist)
        for name in images if topic.endswith("timestep") else ():
            recording.take(Message(name, "sensor_msgs/msg/Image", ns, bytes(60)))
    assert reports[-1][:2] == (CLOSED, "a-1")
    assert missed_images(spool.root / "closed/a-1") == {cameras[0]: "0", cameras[1]: "2"}
    assert recording.missed == 2


def test_before_an_episode_nothing_is_missed_closed_or_aborted(recording, reports):
    assert recording.missed == 0
    for at_s in (0, 1, 100):
        recording.close_if_due(at_s * NS)
    assert reports == []


def test_a_lost_action_in_the_middle_is_waited_for(recording, task, reports):
    kinds = iter((0, 1))
    for topic, kind, ns, raw in raw_messages(task.spec, "a-1", steps=4):
        event = (
            SimpleNamespace(kind=next(kinds), episode_id="a-1", steps=4, detail="")
            if topic.endswith("episode")
            else None
        )
        if not (topic.endswith("applied") and ns == NS // 10):
            recording.take(Message(topic, kind, ns, raw), event)
    assert recording.applied == 3 and not reports
    tell_safety(recording, stamp_s=0.4, at_s=0.6)
    recording.close_if_due(round((0.6 + GRACE_S + 0.01) * NS))
    assert [what[:2] for what in reports] == [(CLOSED, "a-1")]


@pytest.mark.parametrize(
    "stamps, newest_ns, recent",
    [
        ((2, 3, 4), {"a": 2_750_000_000}, True),
        ((2, 3, 4), {"a": 2_749_999_999}, False),
        ((2, 3, 4), {"a": 2_750_000_000, "b": 2_749_999_999}, False),
        ((2, 3, 4), {"a": 2_750_000_000, "b": 3 * NS}, True),
        ((3, 4), {"a": 3 * NS}, True),
        ((3, 4), {"a": 3 * NS - 1}, False),
        ((2, 3, 4), {}, False),
        ((3,), {"a": 0}, True),
        ((), {"a": 0}, True),
        ((), {}, False),
    ],
)
def test_the_last_time_step_begins_a_quarter_of_one_before_its_stamp(
    spool, stamps, newest_ns, recent
):
    recording = Recording(spool, print, arms=max(1, len(newest_ns)))
    recording.stamps.extend(stamp * NS for stamp in stamps)
    assert recording._is_recent(newest_ns) is recent


def test_a_stamp_that_comes_late_is_not_the_newest():
    newest_ns = {}
    for topic, stamp_ns in (("a", 5), ("b", 2), ("a", 3 * NS + 7), ("a", 3 * NS), ("b", 1)):
        raw = struct.pack("<4siI", b"\x00\x01\x00\x00", *divmod(stamp_ns, NS))
        _keep_newest(newest_ns, Message(topic, "k", 0, raw))
    assert newest_ns == {"a": 3 * NS + 7, "b": 2}


def test_a_message_is_logged_by_simulated_time_then_by_the_wall_clock():
    assert Message("t", "k", 1, b"").log_ns == 1
    assert Message("t", "k", 1, b"", 2).log_ns == 2
    assert Message("t", "k", 1, b"", 2, 0).log_ns == 0, "simulated time begins at zero"
    other = Message("o", "k", 4, b"x", 5, 6).at_time_of(Message("t", "k", 1, b"", 2))
    assert (other.at_ns, other.wall_ns, other.simulated_ns, other.topic, other.raw) == (
        1,
        2,
        None,
        "o",
        b"x",
    )


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_within_an_episode_ends_none(
    recording, task, reports, monkeypatch, hours
):
    """An hour ahead ended the grace of its last messages at once; an hour back kept it open for an
    hour.
    """
    items, real_ns = [], time.time_ns
    node = SimpleNamespace(
        recording=recording,
        _put=lambda _, message: items.append(message),
        sampled=SimpleNamespace(lockstep=False),
    )
    messages = raw_messages(task.spec, "a-1", steps=5, leave=("timestep",))
    for topic, kind, _, raw in messages:
        Recorder._on_raw(node, "episode", topic, kind, raw)
        if len(items) == len(messages) // 2:
            monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * 3600 * 10**9)
    events = iter(
        [SimpleNamespace(kind=kind, episode_id="a-1", steps=5, detail="") for kind in (0, 1)]
    )
    for message in items:
        recording.take(message, next(events) if message.topic.endswith("episode") else None)
    Recorder._poll(node)
    assert not reports, "its last time step may be on its way"
    assert abs(items[-1].log_ns - items[0].log_ns) > 3599 * 10**9, "log times are the wall clock's"
    deadline = time.monotonic() + 10 * GRACE_S
    while not reports and time.monotonic() < deadline:
        time.sleep(0.05)
        Recorder._poll(node)
    assert reports[0][:2] == (ABORTED, "a-1") and "expected 6 time steps" in reports[0][3]


def begin(recording, task, episode_id="a-1", at_ns=0):
    """Begin an episode, and return the rest of its messages."""
    first, *rest = raw_messages(task.spec, episode_id, steps=3)
    event = SimpleNamespace(kind=0, episode_id=episode_id, steps=0, detail="")
    recording.take(Message(*first[:2], at_ns, first[3]), event)
    return [Message(topic, kind, ns, raw) for topic, kind, ns, raw in rest]


def text(number, at_ns=0, topic="/station/label"):
    return Message(topic, "std_msgs/msg/String", at_ns, struct.pack("<4sI", b"\0\1\0\0", number))


def test_of_what_comes_before_an_episode_the_last_64_messages_of_a_second_belong_to_it(
    recording, task
):
    assert (recording.steps, recording.applied, recording.ended_ns) == (0, 0, 0)
    assert recording.held is False
    for number in range(100):
        recording.take(text(number))
    assert len(recording.early) == 64
    begin(recording, task)
    assert recording.counts["/station/label"] == 64 and len(recording.early) == 0
    recording.abort("stopped")
    for at_ns in (0, 1, NS, NS + 1):
        recording.take(text(0, at_ns))
    assert [message.at_ns for message in recording.early] == [1, NS, NS + 1]
    begin(recording, task, "b-1", NS + 1)
    assert recording.counts["/station/label"] == 3


def test_the_next_episode_ends_one_that_is_not_over_with_the_reason(recording, task, reports):
    begin(recording, task, "a-1")
    begin(recording, task, "b-1")
    assert reports == [(ABORTED, "a-1", None, "the next episode began before this one ended")]


def test_an_episode_that_the_station_gave_up_is_set_aside_without_a_further_event(
    recording, spool, task, reports
):
    begin(recording, task)
    event = SimpleNamespace(kind=ABORTED, episode_id="b-1", steps=0, detail="of another")
    recording.take(text(1, topic="/station/episode"), event)
    assert recording.writer is not None
    event = SimpleNamespace(kind=ABORTED, episode_id="a-1", steps=0, detail="the scene is empty")
    recording.take(text(1, topic="/station/episode"), event)
    assert recording.writer is None and reports == []
    assert [path.name for path in (spool.root / "broken").iterdir()] == ["a-1"]


def test_the_grace_is_over_after_half_a_second_and_not_at_it(recording, task, reports):
    play(recording, task, "a-1", moves=3)
    tell_safety(recording, stamp_s=0.4, at_s=0.6)
    grace_ns = round((0.6 + GRACE_S) * NS)
    recording.close_if_due(grace_ns)
    assert reports == []
    recording.close_if_due(grace_ns + 1)
    assert [what[:2] for what in reports] == [(CLOSED, "a-1")]
    assert (reports[0][2].kind, reports[0][2].steps) == (1, 5), "its end is told with it"


def test_without_the_interlocks_state_five_seconds_are_waited(recording, task, reports):
    play(recording, task, "a-1", moves=3)
    recording.close_if_due(round(5.5 * NS))
    assert reports == []
    recording.close_if_due(round(5.5 * NS) + 1)
    assert [what[:2] for what in reports] == [(CLOSED, "a-1")]


def test_the_reason_of_a_disk_is_told_at_the_end_of_an_episode_too(
    recording, task, reports, monkeypatch
):
    def fails(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", fails)
    play(recording, task)
    monkeypatch.undo()
    (report,) = reports
    assert report[:3] == (ABORTED, "a-1", None) and "Input/output error. Check the" in report[3]


def test_missed_images_of_all_episodes_are_counted(spool, task, reports):
    camera = "/station/camera/front/image"
    recording = Recording(spool, lambda *what: reports.append(what), cameras=[camera])
    for name in ("a-1", "a-2"):
        play(recording, task, name)
    assert [what[:2] for what in reports] == [(CLOSED, "a-1"), (CLOSED, "a-2")]
    assert recording.missed == 12 and recording.stamps.maxlen == 3


@pytest.mark.parametrize("seconds", [7, -7])
@pytest.mark.parametrize("order, flag", [("<", 1), (">", 0)])
def test_a_stamp_is_read_in_the_byte_order_of_its_message(seconds, order, flag):
    raw = bytes((0, flag, 0, 0)) + struct.pack(f"{order}iI", seconds, 999_999_999) + b"more"
    assert _stamp_ns(raw) == seconds * NS + 999_999_999
    raw = bytes((0, flag, 0, 0)) + struct.pack(f"{order}iI", seconds, 3_000_000_000)
    assert _stamp_ns(raw) == seconds * NS + 3_000_000_000, "nanoseconds have no sign"


def test_a_quarter_of_a_time_step_is_counted_to_the_nanosecond(spool):
    recording = Recording(spool, print)
    first = 1_764_500_000_000_000_001
    recording.stamps.extend((first, first + NS, first + 2 * NS))
    begins = first + NS - NS // 4
    assert recording._is_recent({"a": begins}) and not recording._is_recent({"a": begins - 1})


def test_a_message_of_a_quarter_of_a_ring_is_kept():
    for max_bytes, size, count in ((40, 10, 1), (43, 10, 1), (43, 11, 0)):
        ring = Ring(max_bytes)
        ring.add(Message("t", "k", 0, bytes(size)))
        assert len(ring) == count


def test_a_worker_takes_as_many_bytes_as_it_may_hold():
    gate = threading.Event()
    worker = Worker(lambda item: gate.wait(10), lambda: None, print, max_bytes=100)
    before = threading.enumerate()
    assert [worker.put(number, 50) for number in range(3)] == [True, True, False]
    assert worker.bytes == 100 and not worker.idle
    assert any(thread.daemon and "_run" in thread.name for thread in before)
    gate.set()
    end = time.monotonic() + 10
    while not worker.idle and time.monotonic() < end:
        time.sleep(0.01)
    assert worker.idle and worker.bytes == 0


def test_a_worker_that_polls_holds_no_bytes(monkeypatch):
    monkeypatch.setattr("rlinf_core.episodes.worker.POLL_S", 0.01)
    held, polled = [], threading.Event()

    def poll():
        held.append((worker.bytes, worker.idle))
        if len(held) > 2:
            polled.set()

    worker = Worker(print, poll, print)
    assert polled.wait(10)
    assert held[:3] == [(0, False)] * 3


def test_a_worker_goes_on_after_its_rest():
    handled, both = [], threading.Event()

    def handle(item):
        handled.append(item)
        if len(handled) == 2:
            both.set()

    worker = Worker(handle, lambda: None, print)
    worker.put("a", 1)
    time.sleep(0.03)
    worker.put("b", 1)
    assert both.wait(10) and handled == ["a", "b"]


def test_urgent_items_of_one_batch_end_one_rest(monkeypatch):
    monkeypatch.setattr("rlinf_core.episodes.worker.REST_S", 60.0)
    gate, handled, done = threading.Event(), [], threading.Semaphore(0)

    def handle(item):
        gate.wait(10)
        handled.append(item)
        done.release()

    worker = Worker(handle, lambda: None, print)
    for item in "abc":
        worker.put(item, 1, urgent=True)
    gate.set()
    assert all(done.acquire(timeout=10) for _ in "abc")
    time.sleep(0.05)
    worker.put("d", 1)
    assert done.acquire(timeout=10)
    time.sleep(0.05)
    worker.put("e", 1)
    assert not done.acquire(timeout=0.1) and handled == [*"abcd"], "it rests now"
