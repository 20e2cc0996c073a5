"""An episode that nobody wants any more does not begin, nor one whose arm may not move; no time
step comes twice.
"""

import contextlib
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseStamped
from rclpy.action import ActionClient, GoalResponse
from rclpy.task import Future
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import ActionChunk, EpisodeEvent, SafetyState
from std_msgs.msg import Header, String

from rlinf_core.episodes.spool import Spool
from rlinf_core.tasks.task import StepResult
from rlinf_ros.latest_messages import Latest
from rlinf_ros.qos import profile
from rlinf_ros.station_state import RequestStop
from rlinf_station.environment import Environment, Watch
from rlinf_station.labels import Labels
from tests.ros.stand_ins import listen, start
from tests.ros.test_scene import RobotSide

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]
DOMAIN = 68


@pytest.mark.domain(DOMAIN)
def test_what_is_taken_back_or_forbidden_while_the_scene_is_reset_begins_nothing(peer, tmp_path):
    Spool(tmp_path / "spool")
    robot_side, state = RobotSide(DOMAIN), SafetyState(state=SafetyState.ARMED)
    safety = peer.node.create_publisher(SafetyState, "safety", profile("safety"))
    events, runner = (
        listen(peer, EpisodeEvent, "episode"),
        ActionClient(peer.node, RunEpisodes, "run_episodes"),
    )
    peer.every(0.05, lambda: safety.publish(state))
    # without it no episode is ready
    peer.node.create_publisher(ActionChunk, "policy/action", profile("policy/action"))
    try:
        start(peer, "recorder")
        start(peer, "environment")
        peer.spin(runner.server_is_ready, what="the environment")
        peer.for_s(4.0)  # in which all have met

        def ask():
            sent = runner.send_goal_async(RunEpisodes.Goal(count=2, mode="evaluate", first_seed=1))
            peer.spin(sent.done, what="the goal")
            assert sent.result().accepted
            return sent.result()

        def begun():
            return [event for event in events if event.kind == EpisodeEvent.STARTED]

        handle = ask()
        result = handle.get_result_async()
        peer.spin(
            lambda: robot_side.requested_seeds == [1],
            what="the scene to be asked for",
            timeout_s=40.0,
        )
        taken_back = handle.cancel_goal_async()
        peer.spin(taken_back.done, what="the cancelling")
        robot_side.go_on.set()
        peer.spin(result.done, what="its end", timeout_s=40.0)
        ended = result.result().result
        assert (ended.message, ended.error_code) == ("cancelled", ended.CANCELLED) and not begun()

        robot_side.go_on.clear()
        result = ask().get_result_async()
        peer.spin(
            lambda: robot_side.requested_seeds == [1, 1],
            what="the scene to be asked for",
            timeout_s=40.0,
        )
        state.state = SafetyState.DISARMED
        peer.for_s(1.0)
        robot_side.go_on.set()
        peer.spin(result.done, what="its end", timeout_s=40.0)
        ended = result.result().result
        assert ended.message == "the interlock stopped: DISARMED. Arm, then try again"
        assert ended.error_code == ended.INTERLOCK_STOPPED
        state.state = SafetyState.ARMED
        peer.for_s(3.0)
        assert not begun(), "the arming of a person who asked for nothing"

        def refused():
            sent = runner.send_goal_async(RunEpisodes.Goal(count=1, mode="evaluate", first_seed=1))
            peer.spin(sent.done, what="the goal")
            return not sent.result().accepted

        state.state, state.cause = SafetyState.FAULT, "estop:page"
        peer.for_s(0.5)
        assert refused(), "a request under FAULT begins nothing, now or later"
        state.state, state.cause = SafetyState.DISARMED, ""
        peer.for_s(0.5)
        ask()
        peer.for_s(1.0)
        assert not begun(), "disarmed it waits for the arming that follows"
        state.state = SafetyState.ARMED
        peer.spin(begun, what="the episode", timeout_s=40.0)
        state.state, state.cause = SafetyState.FAULT, "estop:page"
        peer.spin(
            lambda: events[-1].kind == EpisodeEvent.ABORTED,
            what="the end of the episode in play",
            timeout_s=40.0,
        )
        assert events[-1].detail == "the interlock stopped: FAULT estop:page. Arm, then try again"
        for later in (SafetyState.DISARMED, SafetyState.ARMED):
            state.state, state.cause, begun_count = later, "", len(begun())
            peer.for_s(2.0)
        assert len(begun()) == begun_count == 1, (
            "neither a reset nor an arming begins what was asked before"
        )
    finally:
        robot_side.close()


def test_a_pose_that_was_seen_makes_no_other_time_step():
    environment, taken = Environment.__new__(Environment), []  # without ROS
    environment.inputs = SimpleNamespace(stamps_ns={"current_pose": 0})
    environment.poses, environment.period_ns, environment.due_ns = ["current_pose"], 10_000_000, 0
    environment.step_index, environment.last_step_ns = 0, 10**18
    environment.get_clock, environment._pull = MagicMock(), lambda: None

    def step(stamp_ns):
        taken.append(stamp_ns)
        environment.step_index, environment.last_step_ns = environment.step_index + 1, stamp_ns

    environment._step, environment.watch = step, SimpleNamespace(missing=lambda: [])
    for stamp_ns in (5, 5, 6, 4, 6, 7):
        environment.inputs.stamps_ns["current_pose"] = stamp_ns
        environment._step_now()
    assert taken == [5, 6, 7]


@pytest.mark.parametrize(
    "recorders, quiet_s, given_up",
    [
        ("one", 14.0, False),
        ("one", 100.0, False),
        ("one", 151.0, True),
        ("", 16.0, True),
        ("two", 16.0, True),
    ],
)
def test_a_recorder_that_is_there_may_take_its_time_to_close_an_episode(
    recorders, quiet_s, given_up
):
    watch, closed = Watch.__new__(Watch), Future()  # without ROS
    watch.environment = SimpleNamespace(
        get_logger=MagicMock(),
        running=False,
        step_index=-1,
        episode_id="a",
        closings={"a": closed},
        patience_s=15.0,
        progress_at=time.monotonic(),
        task=SimpleNamespace(success=None),
        get_name=lambda: "environment",
        get_publishers_info_by_topic=lambda topic: [
            SimpleNamespace(node_name="environment", endpoint_gid=[0]),
            *others,
        ],
    )
    others = [SimpleNamespace(node_name="recorder", endpoint_gid=list(b"one"))]
    watch.note_recorders()
    others[:] = (
        [SimpleNamespace(node_name="recorder", endpoint_gid=list(recorders.encode()))]
        if recorders
        else []
    )
    watch.environment.progress_at -= quiet_s
    watch._poll()
    assert closed.done() == given_up


def test_a_request_whose_answer_could_not_be_sent_is_not_under_way():
    """rclpy starts nothing then, and whoever asked asks again."""
    # without ROS
    environment = Environment.__new__(Environment)
    goal = RunEpisodes.Goal(count=1, mode="train")
    environment.active, environment.running, environment.stop = True, False, RequestStop()
    assert [environment._accept(goal) for _ in range(2)] == [GoalResponse.ACCEPT] * 2
    environment._run = lambda handle: iter(())
    with contextlib.suppress(TypeError, AttributeError):  # nobody runs it here
        environment._start_request(SimpleNamespace(request=goal))
    environment.get_logger = MagicMock()
    assert (
        environment.running
        and environment.mode == "train"
        and environment._accept(goal) == GoalResponse.REJECT
    )


@pytest.mark.parametrize(
    "lockstep, step, missing",
    [(False, 0, ["camera"]), (False, 40, ["camera"]), (False, -1, []), (True, 40, [])],
)
def test_what_has_died_is_missing_also_where_time_steps_are_behind_the_clock(
    lockstep, step, missing
):
    """The camera's last image is a second old, and the next step was due two seconds ago,
    by count.
    """
    now_ns, ages = 10**12, {"current_pose": 0, "camera": 10**9}
    watch = Watch.__new__(Watch)  # without ROS
    watch.environment = SimpleNamespace(
        lockstep=lockstep,
        step_index=step,
        period_ns=10**8,
        playing=lambda: step >= 0,
        due_ns=now_ns if step == 0 else now_ns - 2 * 10**9,
        get_clock=lambda: SimpleNamespace(now=lambda: SimpleNamespace(nanoseconds=now_ns)),
        inputs=SimpleNamespace(
            older_than=lambda ns, at: [name for name, age in ages.items() if now_ns - age < ns]
        ),
    )
    assert watch.missing() == missing


def test_what_does_not_count_is_told_and_after_a_while_what_is_asked_stands_alone_again():
    labels, prompts = Labels.__new__(Labels), []  # without ROS
    labels.node, labels.answer, labels.remark_timer = MagicMock(), Future(), MagicMock()
    labels.playing, labels.may_begin = lambda: False, lambda: False
    labels.prompts = SimpleNamespace(publish=lambda message: prompts.append(message.data))
    labels.prompt("reset the scene")
    labels._on_label(String(data="ready"))
    assert prompts[-1].startswith("ready: the interlock does not let") and prompts[-1].endswith(
        "reset the scene"
    )
    assert labels.remark_timer.reset.called and not labels.answer.done()
    labels._drop_remark()
    assert prompts[-1] == "reset the scene" and labels.remark_timer.cancel.called
    labels._drop_remark()
    assert len(prompts) == 3, "nothing stood there"


@pytest.mark.parametrize("ago_s, missing", [(0.1, []), (0.3, ["camera"])])
def test_a_camera_whose_clock_is_ahead_is_missing_once_it_falls_silent(ago_s, missing):
    latest = Latest.__new__(Latest)  # without ROS
    latest.joints = latest.axes = {}
    latest.channels, latest.messages, latest.stamps_ns, latest.taken_at = {}, {}, {}, {}
    for topic, stamp in (("current_pose", Time(sec=1000)), ("camera", Time(sec=4600))):
        latest._keep(topic, PoseStamped(header=Header(stamp=stamp)))
    latest.taken_at["camera"] -= ago_s
    watch = Watch.__new__(Watch)
    watch.environment = SimpleNamespace(
        lockstep=False,
        step_index=5,
        period_ns=10**8,
        playing=lambda: True,
        due_ns=0,
        inputs=latest,
        get_clock=lambda: SimpleNamespace(now=lambda: SimpleNamespace(nanoseconds=1000 * 10**9)),
    )
    assert watch.missing() == missing


@pytest.mark.parametrize(
    "word, before, reward, success",
    [
        ("success", StepResult(0.25), 1.25, True),
        ("success", StepResult(1.0, success=True), 1.0, True),
        ("failure", StepResult(1.0, success=True), 0.0, False),
        ("success", StepResult(0.0, truncated=True), 1.0, True),
    ],
)
def test_a_persons_word_is_worth_what_the_task_would_have_given(word, before, reward, success):
    labels = Labels.__new__(Labels)  # without ROS
    labels.label = word
    now = labels.with_verdict(before)
    assert (now.reward, now.success, now.failure, now.truncated) == (
        reward,
        success,
        not success,
        False,
    )
