"""A request for a scene gets an answer or a reason, even if an answer is lost."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
import rclpy
from builtin_interfaces.msg import Time
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import MultiThreadedExecutor
from rclpy.task import Future
from rlinf_msgs.action import ResetScene

from rlinf_ros.conversions import to_stamp
from rlinf_ros.scene import Scene
from rlinf_ros.workarounds import run_routine
from rlinf_station.scene_requests import SceneRequests

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300), pytest.mark.domain(98)]


class RobotSide:
    """Answers ``reset_scene`` as told, in a thread of its own."""

    def __init__(self, domain, accept=True, success=True):
        self.context, self.go_on = rclpy.Context(), threading.Event()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node("robot_side", namespace="/station_a", context=self.context)
        self.executor = MultiThreadedExecutor(2, context=self.context)
        self.executor.add_node(self.node)
        self.success, self.accept, self.requested_seeds, self.cancelled = success, accept, [], []
        self.listens = threading.Event()
        self.listens.set()
        self.server = ActionServer(
            self.node,
            ResetScene,
            "reset_scene",
            self.reset,
            goal_callback=self.goal,
            cancel_callback=self.cancel,
            callback_group=ReentrantCallbackGroup(),
        )
        self.thread = threading.Thread(target=self.executor.spin, daemon=True)
        self.thread.start()

    def goal(self, request):
        self.requested_seeds.append(request.seed)
        self.listens.wait(20.0)
        return GoalResponse.ACCEPT if self.accept else GoalResponse.REJECT

    def cancel(self, handle):
        self.cancelled.append(handle.request.seed)
        self.go_on.set()
        return CancelResponse.ACCEPT

    def reset(self, handle):
        self.go_on.wait(20.0)
        success = self.success and not self.cancelled
        (handle.canceled if self.cancelled else handle.succeed if success else handle.abort)()
        return ResetScene.Result(
            success=success,
            message="" if success else "the peg is lost",
            stamp=to_stamp(7),
            instruction="push the red cube",
        )

    def close(self):
        self.go_on.set()
        self.listens.set()
        self.executor.shutdown()
        self.thread.join()  # in which an asker may still be answered
        self.server.destroy()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)


@pytest.fixture
def robot_side(peer):
    sides = []

    def make(**how):
        sides.append(RobotSide(98, **how))
        return sides[0]

    yield make
    for side in sides:
        side.close()


def begin(peer, patience_s=3.0):
    scene, answers = Scene(peer.node, patience_s), []
    peer.spin(scene.client.server_is_ready, what="the robot side")
    peer.for_s(1.0)  # the robot side finds us a little later than we it
    run_routine(scene.reset(3), answers.append)
    return scene, answers


def test_a_scene_that_takes_longer_than_one_is_patient_is_waited_for(peer, robot_side):
    side = robot_side()
    scene, answers = begin(peer)
    peer.spin(lambda: side.requested_seeds, what="the goal")
    scene.patience_s = 0.3
    peer.for_s(4.0)
    assert not answers and side.requested_seeds == [3], "asked once"
    side.go_on.set()
    peer.spin(lambda: answers, what="the answer")
    assert answers == [(to_stamp(7), "")] and scene.instruction == "push the red cube"


def test_an_answer_that_is_lost_is_asked_for_again(peer, robot_side):
    side = robot_side()
    scene, answers = begin(peer)
    lost, ask = [], scene.client._get_result_async

    def lose_the_first(handle):
        future = ask(handle)
        lost.append(future)
        return future if len(lost) > 1 else Future()

    scene.client._get_result_async = lose_the_first
    side.go_on.set()
    peer.spin(lambda: answers, what="the answer")
    assert answers == [(to_stamp(7), "")] and len(lost) == 2 and side.requested_seeds == [3], (
        "the scene is reset once"
    )


@pytest.mark.parametrize(
    "how, message",
    [({"accept": False}, "reset_scene was refused"), ({"success": False}, "the peg is lost")],
)
def test_a_scene_that_is_not_reset_is_said(peer, robot_side, how, message):
    robot_side(**how).go_on.set()
    _, answers = begin(peer)
    peer.spin(lambda: answers, what="the answer")
    ((stamp, trouble),) = answers
    assert stamp is None and message in trouble


def test_a_goal_whose_acceptance_was_lost_is_given_up_and_taken_back(peer, robot_side, monkeypatch):
    side, scene = robot_side(), Scene(peer.node, 0.5)
    peer.spin(scene.client.server_is_ready, what="the robot side")
    peer.for_s(1.0)
    send = scene.client.send_goal_async
    monkeypatch.setattr(
        scene.client, "send_goal_async", lambda *goal, **more: (send(*goal, **more), Future())[1]
    )
    answers = []
    run_routine(scene.reset(3), answers.append)
    peer.spin(lambda: answers, what="the answer")
    assert answers[0][0] is None and "'reset_scene' is not available" in answers[0][1]
    peer.spin(lambda: side.cancelled == [3], what="the cancelling")


@pytest.mark.parametrize(
    "gives_up", [True, False], ids=["nobody waits for it any more", "cancelled before it began"]
)
def test_one_that_hangs_does_not_begin_afterwards_what_nobody_wants_any_more(
    peer, robot_side, gives_up
):
    side = robot_side()
    side.listens.clear()
    scene, answers = begin(peer, patience_s=0.5 if gives_up else 30.0)
    peer.spin(lambda: side.requested_seeds, what="the goal")
    if gives_up:
        peer.spin(lambda: answers, what="the answer")
    else:
        scene.cancel()
        peer.for_s(0.5)
    assert not side.cancelled
    side.listens.set()
    peer.spin(lambda: side.cancelled == [3] and answers, what="the cancelling")
    assert answers[0][0] is None


def test_a_robot_side_that_goes_while_it_resets_is_said(peer, robot_side):
    side = robot_side()
    scene, answers = begin(peer)
    peer.spin(lambda: side.requested_seeds, what="the goal")
    scene.client.server_is_ready = lambda: False  # as the graph says once it has gone
    peer.spin(lambda: answers, what="the answer")
    assert "The server ended during reset_scene" in answers[0][1]


def test_a_routine_that_fails_says_how_before_the_executor_dies_of_it(capsys):
    async def fails():
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        run_routine(fails(), print)
    assert "ValueError: ours" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("teleports", "lockstep", "order"),
    [
        (True, False, ["word", "reset"]),  # else the interlock sees a jump while a person thinks
        (True, True, ["reset", "word"]),
        (False, False, ["reset", "word"]),
    ],
)
def test_where_a_reset_teleports_the_arm_in_real_time_the_word_comes_first(
    teleports, lockstep, order
):
    calls = []

    async def ready(prompt, may_move):
        calls.append("word")
        return True

    async def reset(seed):
        calls.append("reset")
        return Time(sec=seed), ""

    requests = SceneRequests(
        SimpleNamespace(reset=reset, client=SimpleNamespace(server_is_ready=lambda: True)),
        SimpleNamespace(ready=ready),
        None,
        None,
        person=True,
        simulated=False,
        jumps=teleports and not lockstep,
        may_move=lambda: True,
        start_stamp=lambda stamp: stamp,
    )
    stamp, trouble = asyncio.run(requests.reset(5, "demonstration"))
    assert calls == order and not trouble and stamp is not None
