"""Managed nodes: what each does while it is inactive, in a station that a lifecycle manager has
brought up.
"""

import os
import signal

import pytest
from lifecycle_msgs.msg import State, TransitionEvent
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import (
    ActionChunk,
    EpisodeEvent,
    PolicyStatus,
    SafetyState,
    TimeStep,
    TrainerStatus,
)
from std_msgs.msg import Bool
from std_srvs.srv import SetBool, Trigger

from rlinf_core.launch.graph import station_processes, with_lifecycle_manager
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.recipes import load_recipe, station_task
from rlinf_ros.qos import lossless_profile
from rlinf_ros.station_state import publisher_ids
from tests.ports import NO_TRAINER
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import Lives, listen

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]
SMALL = tanh_gaussian.Config(hidden=(32,), horizon=4, n_action_steps=2)
MANAGED = ["interlock", "recorder", "uplink", "policy", "environment", "operator"]
ACTIVE = State.PRIMARY_STATE_ACTIVE


class Station(Lives):
    """A simulated station of several processes, with an untrained policy and without a trainer."""

    def __init__(self, peer, folder):
        super().__init__(peer)
        recipe = load_recipe(
            "demo", ["station.task=reach", "station.processes=several", NO_TRAINER]
        )
        import torch

        torch.manual_seed(3)
        file = save_policy(
            make_policy(station_task(recipe).spec, SMALL), folder / "policy.safetensors"
        )
        kinds = {
            "timestep": TimeStep,
            "episode": EpisodeEvent,
            "safety": SafetyState,
            "teleop/action": ActionChunk,
            "policy/action": ActionChunk,
            "enable": Bool,
            "trainer/status": TrainerStatus,
            "policy/status": PolicyStatus,
        }
        self.received = {
            topic: listen(peer, kind, topic, lossless_profile) for topic, kind in kinds.items()
        }
        self.folder = folder
        self.handle = None  # of the request in play
        self.transitions = []  # the node, and the label of the state that it has come to
        self.listeners = [
            peer.node.create_subscription(
                TransitionEvent,
                f"{name}/transition_event",
                lambda event, name=name: self.transitions.append((name, event.goal_state.label)),
                100,
            )
            for name in MANAGED
        ]
        manager, *processes = with_lifecycle_manager(recipe, station_processes(recipe, folder))
        for process in processes:
            if process.name == "policy":
                process.parameters["policy_file"] = str(file)
            peer.supervisor.start(process)
        self.states_before = self.meet_nodes()
        peer.supervisor.start(manager)
        self.runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        peer.spin(
            lambda: self.received["policy/status"] and self.runner.server_is_ready(),
            what="the station",
        )
        self.until_all_are_active()

    def meet_nodes(self):
        """Wait until no transition can be missed; return the state of each node.

        A node that answers has matched the client of its service. Discovery keeps the order of a
        process's subscriptions, so the node has matched the earlier one to its transitions, too.
        """
        states = [self.state(name) for name in MANAGED]
        self.peer.spin(
            lambda: all(listener.get_publisher_count() for listener in self.listeners),
            what="the publishers of transitions",
        )
        return states

    def processes(self, name):
        """Return the processes of a node, by the middleware's identifiers."""
        return publisher_ids(self.peer.node, f"{name}/transition_event")

    def until_all_are_active(self):
        def active():
            self.answer = self.ask(Trigger, "lifecycle_manager", "is_active")
            return self.answer.success or (self.peer.for_s(0.5) and False)

        self.peer.spin(active, what=lambda: f"all nodes: {self.answer.message}")

    def came_to(self, label):
        """Nodes that came to a state, in their order."""
        return [name for name, state in self.transitions if state == label]

    def play(self, mode, count=1000):
        """Ask for episodes; returns the goal's handle once one is in play."""
        begun = len(self.received["timestep"])
        sent = self.runner.send_goal_async(
            RunEpisodes.Goal(count=count, mode=mode, first_seed=1_000_000)
        )
        self.peer.spin(sent.done, what="an answer to the request")
        handle = sent.result()
        if handle.accepted:
            self.handle = handle
            self.until_an_episode_is_in_play(begun)
        return handle

    def until_an_episode_is_in_play(self, begun):
        """Wait for a time step in the middle of an episode, after the first ``begun`` ones."""
        self.peer.spin(
            lambda: any(
                step.step_type == TimeStep.MID for step in self.received["timestep"][begun:]
            ),
            what=lambda: f"an episode in play: {self.situation()}",
        )

    def situation(self):
        """Return the newest time step, event and safety state, and the status of the request."""
        newest = {name: self.received[name][-1:] for name in ("timestep", "episode", "safety")}
        return f"request {self.handle and self.handle.status}; {newest}"

    def deactivate_in_play(self, node, mode, *causes):
        """Ask for episodes, deactivate a node that commands them, and wait for such a hold.

        An episode may end just then. Nothing commands the next one, so the arm stays ARMED in
        place of HOLD. The node is then deactivated in an episode of a new request.
        """
        safety = self.received["safety"]

        def holds():
            return safety[-1].state == SafetyState.HOLD and safety[-1].cause in causes

        self.play(mode)
        while True:
            assert self.change(node, "deactivate")
            self.peer.for_s(0.2)  # a report from before it may be under way
            self.peer.spin(
                lambda: holds() or safety[-1].state == SafetyState.ARMED,
                what=lambda: f"the hold: {safety[-1].state} {safety[-1].cause}",
            )
            if holds():
                return self.handle
            assert self.change(node, "activate")
            self.cancel(self.handle)
            self.play(mode)

    def ends_faults(self):
        """A request and inactive nodes, which a failed test leaves, must not fail the next."""
        if "lifecycle_manager" in self.peer.supervisor.children:
            for name in MANAGED:
                if self.state(name) == State.PRIMARY_STATE_INACTIVE:
                    self.change(name, "activate")
        if self.handle is not None:
            self.cancel(self.handle)

    def result(self, handle):
        self.handle = None
        answer = handle.get_result_async()
        self.peer.spin(answer.done, what="the end of the request")
        return answer.result().result

    def cancel(self, handle):
        handle.cancel_goal_async()
        return self.result(handle)

    def events(self, kind, episode_id):
        return [
            event
            for event in self.received["episode"]
            if (event.kind, event.episode_id) == (kind, episode_id)
        ]

    def closed(self):
        return {path.name for path in (self.folder / "spool/closed").iterdir()}


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    folder = tmp_path_factory.mktemp("managed")
    with peer_in(folder, 109) as peer:
        yield Station(peer, folder)


def test_the_manager_brings_all_nodes_up_in_order_and_an_impossible_transition_is_refused(station):
    others = [State.PRIMARY_STATE_UNCONFIGURED] * (len(MANAGED) - 1)
    # the interlock is configured once and for all
    assert station.states_before == [State.PRIMARY_STATE_INACTIVE, *others]
    assert station.came_to("active") == MANAGED
    for node in MANAGED:
        assert not station.change(node, "configure") and station.state(node) == ACTIVE, node


def test_an_inactive_environment_aborts_its_episode_and_refuses_requests(station):
    handle = station.play("evaluate")
    episode = station.received["timestep"][-1].episode_id
    assert station.change("environment", "deactivate")
    result = station.result(handle)
    assert not result.success and result.message == "the environment was deactivated"
    station.peer.spin(
        lambda: (
            station.events(EpisodeEvent.ABORTED, episode)
            or station.events(EpisodeEvent.CLOSED, episode)
        ),
        what="the end of the episode",
    )
    assert not station.play("evaluate", 1).accepted
    assert station.change("environment", "activate")
    assert station.result(station.play("evaluate", 1)).success


def test_an_inactive_policy_is_silent_and_the_arm_holds_until_it_is_active(station):
    handle = station.deactivate_in_play("policy", "evaluate", "stale_command")
    chunks = station.received["policy/action"]
    begun = len(chunks)
    station.peer.for_s(1.0)
    assert len(chunks) == begun
    assert station.change("policy", "activate")
    closed = len(station.closed())
    station.peer.spin(lambda: len(station.closed()) > closed + 1, what="further episodes")
    station.cancel(handle)


def test_an_inactive_recorder_finishes_its_recording_and_begins_none(station):
    handle = station.play("evaluate")
    steps = station.received["timestep"]
    station.peer.spin(
        lambda: (station.folder / "spool/open" / steps[-1].episode_id).exists(),
        what="an episode that is being recorded",
    )
    episode = steps[-1].episode_id
    assert station.change("recorder", "deactivate")
    result = station.result(handle)
    assert not result.success and "the recorder is inactive" in result.message

    def to_close():
        """The one that was recorded, and what has ended, but for the one that was not begun."""
        events = station.received["episode"]
        ids = {
            kind: {event.episode_id for event in events if event.kind == kind}
            for kind in (EpisodeEvent.ENDED, EpisodeEvent.ABORTED)
        }
        return {episode} | (ids[EpisodeEvent.ENDED] - ids[EpisodeEvent.ABORTED])

    station.peer.spin(
        lambda: to_close() <= station.closed(),
        what=lambda: f"{to_close()} on disk, {station.closed()} are",
    )
    assert station.change("recorder", "activate")
    assert station.result(station.play("evaluate", 1)).success


def test_an_inactive_operator_lets_go_of_the_enable_and_commands_nothing(station):
    causes = "stale_command", "operator_silent"
    handle = station.deactivate_in_play("operator", "demonstration", *causes)
    begun, enables = len(station.received["teleop/action"]), station.received["enable"]
    station.peer.for_s(1.0)
    assert len(station.received["teleop/action"]) == begun and not enables[-1].data
    assert station.change("operator", "activate")
    closed = len(station.closed())
    station.peer.spin(lambda: len(station.closed()) > closed + 1, what="further demonstrations")
    station.cancel(handle)


def test_an_inactive_uplink_asks_nothing_of_the_trainer(station):
    assert station.change("uplink", "deactivate")
    statuses = station.received["trainer/status"]
    station.peer.spin(lambda: "the uplink is inactive" in statuses[-1].message, what="its word")
    assert not statuses[-1].connected and statuses[-1].backlog == len(station.closed())
    assert (
        station.change("uplink", "cleanup")
        and station.state("uplink") == State.PRIMARY_STATE_UNCONFIGURED
    )
    assert station.change("uplink", "configure") and station.change("uplink", "activate")
    station.peer.spin(lambda: "inactive" not in statuses[-1].message, what="its question")


def test_a_node_whose_process_was_killed_comes_back_to_active(station):
    before = {name: station.processes(name) for name in ("policy", "environment")}
    for name in before:
        os.kill(station.peer.supervisor.children[name].popen.pid, signal.SIGKILL)
    station.peer.spin(
        lambda: all(
            (processes := station.processes(name)) and not processes & killed
            for name, killed in before.items()
        ),
        what="both new processes",
    )
    for name in before:  # its own answer, as its transitions may precede the discovery
        station.peer.spin(lambda name=name: station.state(name) == ACTIVE, what=name)
    station.until_all_are_active()
    station.peer.spin(station.runner.server_is_ready, what="the environment")
    assert station.result(station.play("evaluate", 1)).success


def test_the_manager_takes_all_nodes_down_in_reverse_order_and_up_again_and_leaves_them_down_at_its_end(
    station,
):
    arm = station.peer.node.create_client(SetBool, "interlock/arm")
    station.change("operator", "deactivate")  # it would arm again
    safety = station.received["safety"]

    def at_rest():
        arm.call_async(SetBool.Request(data=False))
        station.peer.for_s(0.5)
        return safety[-1].state == SafetyState.DISARMED

    station.peer.spin(at_rest, what="the disarming")
    begun = len(station.transitions)
    assert station.ask(SetBool, "lifecycle_manager", "manage_nodes", data=False).success
    down = [*reversed(MANAGED)]
    station.peer.spin(
        lambda: station.transitions[begun:].count(("recorder", "unconfigured")),
        what="the nodes to go down",
    )
    inactive = [name for name, state in station.transitions[begun:] if state == "unconfigured"]
    # which is configured once and for all
    assert inactive == [name for name in down if name != "interlock"]
    assert station.ask(SetBool, "lifecycle_manager", "manage_nodes", data=True).success
    station.until_all_are_active()
    begun = len(station.transitions)
    manager = station.peer.supervisor.children.pop("lifecycle_manager").popen
    manager.send_signal(signal.SIGINT)
    station.peer.spin(lambda: manager.poll() is not None, what="its end")
    station.peer.spin(
        lambda: ("recorder", "inactive") in station.transitions[begun:], what="the last transition"
    )
    inactive = [name for name, state in station.transitions[begun:] if state == "inactive"]
    assert manager.returncode == 0 and [name for name in down if name != "interlock"] == [
        name for name in inactive if name != "interlock"
    ]


def test_a_node_that_is_shut_down_stays_silent_until_its_process_ends(station):
    assert (
        station.change("policy", "inactive_shutdown")
        and station.state("policy") == State.PRIMARY_STATE_FINALIZED
    )
    assert not station.change("policy", "activate")
    assert station.peer.supervisor.children["policy"].popen.poll() is None
