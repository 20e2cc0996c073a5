"""A simulated station in real time with the operator's page, and a policy that always continues."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from pathlib import Path

import aiohttp
import rclpy
from geometry_msgs.msg import PoseStamped
from rlinf_msgs.msg import ActionChunk, EpisodeEvent, SafetyState, TimeStep
from std_msgs.msg import Bool

from rlinf_core.interlock.takeover import OPERATOR_SILENT
from rlinf_core.recipes import load_recipe, station_task
from rlinf_ros.conversions import action_chunk
from rlinf_ros.qos import profile
from rlinf_ros.workarounds import single_threaded
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start

NODES = ("sim_bridge", "interlock", "recorder", "environment", "operator", "page")
TASK = "configs/tasks/reach.yaml"


@contextlib.contextmanager
def paged(folder, *overrides, domain):
    """Run such a station in a domain of its own."""
    with peer_in(folder, domain) as peer:
        station = Paged(peer, folder, *overrides)
        with visitor(station):  # it is up
            pass
        yield station
        station.close()


class Paged:
    """A station whose policy drifts upwards, so that a test sees when it moves."""

    def __init__(self, peer, folder, *more):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.peer, self.url, self.seq, self.drift = peer, f"http://127.0.0.1:{port}", 0, 0.05
        self.node = rclpy.create_node("stand_in", namespace="/station_a", context=peer.context)
        self.states, self.targets = (
            listen(self, SafetyState, "safety"),
            listen(self, PoseStamped, "target_pose"),
        )
        self.teleop, self.episodes = (
            listen(self, ActionChunk, "teleop/action"),
            listen(self, EpisodeEvent, "episode"),
        )
        self.enables = listen(self, Bool, "enable")
        task = folder / "long.yaml"
        task.write_text(Path(TASK).read_text().replace("max_steps: 30", "max_steps: 9000"))
        overrides = [
            "station.lockstep=false",
            f"station.task={task}",
            f"station.web.port={port}",
            "station.observe_cameras=[front,wrist]",
            "station.image_size=[32,32]",
            *more,
        ]
        self.spec = station_task(load_recipe("demo", overrides)).spec
        self.policy = self.node.create_publisher(
            ActionChunk, "policy/action", profile("policy/action")
        )
        self.node.create_subscription(TimeStep, "timestep", self._play, profile("timestep"))
        self.executor = single_threaded(peer.context)
        self.executor.add_node(self.node)
        self.over, self.spinning = False, threading.Thread(target=self._spin, daemon=True)
        self.spinning.start()  # the policy answers while the test waits
        for name in NODES:
            start(
                peer,
                name,
                *overrides,
                **({"patience_s": 30.0, "person": True} if name == "environment" else {}),
            )

    def _spin(self):
        with contextlib.suppress(rclpy.executors.ExternalShutdownException):
            while not self.over:
                self.executor.spin_once(timeout_sec=0.1)

    def close(self):
        self.over = True
        self.spinning.join()
        self.executor.shutdown()
        self.node.destroy_node()

    def _play(self, step):
        if step.step_type == TimeStep.LAST:
            return
        self.seq += 1
        chunk = action_chunk(
            self.spec,
            [[0.0, 0.0, self.drift]],
            source="policy",
            session="p",
            seq=self.seq,
            version=1,
            observation_stamp=step.header.stamp,
        )
        chunk.header.stamp = self.node.get_clock().now().to_msg()
        self.policy.publish(chunk)

    @property
    def state(self):
        return self.states[-1] if self.states else SafetyState()

    @property
    def at(self):
        place = self.targets[-1].pose.position
        return place.x, place.y, place.z

    def reach(self, state, cause=None, timeout_s=90):
        self.peer.spin(
            lambda: self.state.state == state and cause in (None, self.state.cause),
            timeout_s,
            lambda: f"{state} {cause}; it is {self.state.state} {self.state.cause!r}",
        )

    def rests(self, seconds=0.8):
        """Wait until the arm rests, although the policy continues to command."""
        self.peer.for_s(0.5)
        before, last_seq, operator = self.at, self.seq, len(self.teleop)
        self.peer.for_s(seconds)
        assert max(abs(a - b) for a, b in zip(before, self.at, strict=True)) < 1e-4, "it stands"
        assert self.seq > last_seq and len(self.teleop) == operator, (
            "the policy asks, and nobody else"
        )


class Client:
    """A page without a browser: one socket in a thread, which sends the held motion at 20 Hz."""

    def __init__(self, url):
        self.url, self.held, self.axes, self.active, self.silent = url, False, {}, True, False
        self.messages, self.notes, self.frames, self.closed = {}, [], 0, None
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(
            target=self.loop.run_until_complete, args=[self._live()], daemon=True
        )
        self.thread.start()

    async def _live(self):
        headers, place = {"Origin": self.url}, f"{self.url}/live"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(place, headers=headers) as self.socket,
        ):
            handing = asyncio.ensure_future(self._hand())
            async for message in self.socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    self.frames += 1
                    await self.socket.send_json({"kind": "acknowledgement"})
                    continue
                word = json.loads(message.data)
                (
                    self.notes.append(word)
                    if word["kind"] == "note"
                    else self.messages.update({word["kind"]: word})
                )
            handing.cancel()
            self.closed = self.socket.close_code

    async def _hand(self):
        seq = 0
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            while True:
                await asyncio.sleep(0.05)
                if not self.silent and "state" in self.messages:
                    seq += 1
                    await self.socket.send_json(
                        {
                            "kind": "motion",
                            "seq": seq,
                            "shown_at": self.messages["state"]["t"],
                            "held": self.held,
                            "active": self.active,
                            "axes": self.axes,
                        }
                    )

    def hold(self, **axes):
        self.held, self.axes = True, axes

    def let_go(self):
        self.held, self.axes = False, {}

    def enable_anew(self, peer):
        """Let go of everything, touch nothing for a moment, and then touch something again."""
        self.let_go()
        self.silent, self.active = False, False
        peer.for_s(1.0)
        self.active = True

    def send(self, text):
        asyncio.run_coroutine_threadsafe(self.socket.send_str(text), self.loop).result(5)

    def press(self, what, **more):
        """Press like a person who sees the current state of the station."""
        self.send(
            json.dumps({"kind": "request", "what": what, "shown_at": time.monotonic()} | more)
        )

    def ask(self, peer, what, **more):
        """Send a request and return the answer."""
        before = len(self.notes)
        self.press(what, **more)
        peer.spin(lambda: len(self.notes) > before, what=f"an answer to {what}")
        return self.notes[-1]

    def close(self):
        if self.thread.is_alive():
            asyncio.run_coroutine_threadsafe(self.socket.close(), self.loop).result(5)
        self.thread.join(5)


@contextlib.contextmanager
def visitor(station):
    """Provide a page that is open and has the controls."""
    for _ in range(200):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", int(station.url.rpartition(":")[2])), 1).close()
            break
        station.peer.for_s(0.2)
    client = Client(station.url)
    try:
        station.peer.spin(lambda: "state" in client.messages, what="the page's state")
        assert client.ask(station.peer, "take")["well"]
        yield client
    finally:
        client.close()


def ready(station, client, mode="train"):
    """Arm the station and start an episode."""
    end = time.monotonic() + 60
    stopped = (SafetyState.FAULT, SafetyState.DISARMED)
    if station.state.state == SafetyState.FAULT:
        client.ask(station.peer, "release")
    while station.state.state in stopped or not client.messages["state"]["episode"]["playing"]:
        assert time.monotonic() < end, (station.state, client.notes[-3:])
        if station.state.cause == OPERATOR_SILENT:
            client.enable_anew(station.peer)
        if station.state.state in stopped:  # a late page may also have stopped the arm
            what = (
                {"cause": station.state.cause} if station.state.state == SafetyState.FAULT else {}
            )
            client.ask(station.peer, "reset" if what else "arm", **what)
            station.peer.for_s(0.3)
            continue
        # Repeat the request like a person, while an earlier episode still ends.
        client.ask(station.peer, "start", mode=mode)
        with contextlib.suppress(AssertionError):
            station.peer.spin(
                lambda: (
                    client.messages["state"]["episode"]["playing"] or station.state.state in stopped
                ),
                3,
            )
