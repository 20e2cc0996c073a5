"""Policy node with a server's chunks (``rlinf serve``, openpi's), while the arm moves on."""

from __future__ import annotations

import queue
import re
import threading
import time
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from rlinf_msgs.msg import PolicyUpdate, SafetyState, TimeStep

from rlinf_core.core.errors import (
    AnswerError,
    RefusedRequestError,
    RlinfError,
    ServingError,
    SpecError,
    escape_ascii,
    harmless_lines,
)
from rlinf_core.deploy.serving.access import read_key
from rlinf_core.deploy.serving.client import PolicyClient
from rlinf_core.deploy.serving.protocol import (
    EXTENSION_KEY,
    check_horizon,
    check_keys,
    observation_message,
    read_actions,
    read_extension,
)
from rlinf_core.policies.chunking import (
    REAL_TIME,
    RECEDING_HORIZON,
    SYNCHRONOUS,
    TEMPORAL_ENSEMBLING,
    Chunking,
)
from rlinf_core.recipes.schema import StationPolicy
from rlinf_core.specs.arrays import StationSpec
from rlinf_ros.conversions import action_chunk, fill_drawn, observation_of, to_ns
from rlinf_station.episodes import request_of
from rlinf_station.policy_node import PolicyNode

RETRY_S = 1.0
STARVED = "stale_command"  # the interlock's name for a chunk that is over
LOOK_S = 0.2
NUMBER = re.compile(r"-?[0-9][0-9.e+-]*")
# answers, whose slowest predicts the part of a chunk that begins before the next one arrives
RECENT = 10


class RemotePolicyNode(PolicyNode):
    """One thread asks the server and waits; the executor never does.

    Both hold ``lock`` while they access chunks.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.connected = False
        self.busy = False
        self.stopping = threading.Event()
        self.newest_id = ""
        self.horizon, self.execute = 0, 0
        self.requests: queue.Queue[tuple[TimeStep, float]] = queue.Queue(1)
        # to be played from the next time step on
        self.pending: tuple[str, np.ndarray, dict[str, Any]] | None = None
        self.chunking = Chunking(RECEDING_HORIZON, 1)
        self.nothing_in_play = True
        self.outdated = False  # whether an interruption has begun since the last request
        super().__init__()
        self.settings = self.declare_settings("remote", StationPolicy).model_dump()
        threading.Thread(target=self._work, daemon=True).start()

    # The executor's part
    def deactivate(self) -> None:
        """Discard the awaited answer."""
        with self.lock:
            self.outdated = True
            self.pending = None
            self.chunking.cut()

    def _on_safety(self, safety: SafetyState) -> None:
        """Keep the awaited answer while the arm is held because a chunk is over.

        This node's own waiting causes that hold.
        """
        with self.lock:
            before = self.interrupted
            super()._on_safety(safety)
            self.interrupted &= not (safety.state == SafetyState.HOLD and safety.cause == STARVED)
            if self.interrupted and not before:  # it may end before the next time step
                self.outdated = True
                self.pending = None
                self.chunking.cut()
                self.schedule.cut()

    def _on_update(self, update: PolicyUpdate) -> None:
        self.get_logger().info(
            f"version {update.version} is not loaded: the station plays the server's policies"
        )

    def _on_timestep(self, step: TimeStep) -> None:
        with self.lock:
            if (
                step.step_type != TimeStep.MID
                or self.interrupted
                or step.instruction != self.instruction
            ):
                self.chunking.cut()
                self.pending = None
            self.newest_id = step.episode_id
            super()._on_timestep(step)

    def _answer_step(self, step: TimeStep) -> None:
        if self.pending is not None and self.pending[0] == step.episode_id:
            _, actions, extension = self.pending
            self.pending = None
            self._send(step, actions, extension, 0)
        elif self.connected and not self.busy:
            self.busy, self.outdated, self.nothing_in_play = True, False, self._can_play_all(step)
            self.requests.put_nowait((step, time.monotonic()))

    def _can_play_all(self, step: TimeStep) -> bool:
        """Return whether no chunk of this policy plays meanwhile, so that all of the answer can."""
        over = self.chunking.mode == SYNCHRONOUS or not len(
            self.chunking.remaining(self._number(step))
        )
        return not self.interrupted and over

    # The thread's part
    def _work(self) -> None:
        while not self.stopping.is_set():
            client = None
            try:
                key_file = self.settings.get("api_key_file", "")
                key = read_key(Path(key_file)) if key_file else ""
                client = PolicyClient(
                    self.settings["address"],
                    self.settings["timeout_s"],
                    key,
                    self.settings.get("tls_ca", ""),
                )
                self._connect(client.metadata)
                while not self.stopping.is_set():
                    self._request_chunk(client)
                    if not client.open:
                        raise ServingError(
                            f"policy server {client.address}: the connection was closed"
                        )
            except Exception as error:  # a server may send anything, and only this thread asks it
                reason = (
                    error
                    if isinstance(error, RlinfError | OSError)
                    else f"{type(error).__name__}: {error}"
                )
                self._set_error(
                    f"{reason}. The station retries every {RETRY_S:g} s; the arm holds at the end "
                    "of its chunk"
                )
            finally:
                self.connected = self.busy = False
                if client is not None:
                    client.close()
            self.stopping.wait(RETRY_S)

    def _connect(self, metadata: dict[str, Any]) -> None:
        """Refuse a server of another task; take its version and its chunks' length."""
        extension = read_extension(metadata)
        if type(execute := extension.get("execute", 0)) is not int or not 0 <= execute <= 1000:
            raise ServingError(
                f"policy server {self.settings['address']}: expected execute of 0 to "
                f"1000, got {escape_ascii(execute)[:40]}"
            )
        if (
            "spec" in extension
            and (served_spec := StationSpec.from_dict(extension["spec"])).hash != self.spec.hash
        ):
            raise SpecError(
                f"policy server {self.settings['address']} does not fit this station:\n"
                f"{served_spec.difference(self.spec)}\nServe a policy of this station's task"
            )
        check_keys(self.spec, self.settings["keys"])
        with self.lock:
            self.execute = self.settings["n_action_steps"] or extension.get("execute", 0)
            self.horizon = 0
            playing = self.chunking.chunks
            self.chunking = Chunking(self.settings["chunking"], self.execute or 1)
            # the arm went on meanwhile, and the due time is unchanged
            self.chunking.chunks = playing
            self.schedule.index += self.chunking.execute - self.schedule.execute
            self.schedule.execute = self.chunking.execute
            self.status.version = extension.get("version", 0)
            self.status.path = self.settings["address"]
            self.ready = True
            self.connected = True
            self.busy = False
            while not self.requests.empty():
                self.requests.get_nowait()
        self._set_error("")

    def _request_chunk(self, client: PolicyClient) -> None:
        try:
            step, since = self.requests.get(timeout=LOOK_S)
        except queue.Empty:
            return
        try:
            named = observation_of(step, self.spec)
            message = observation_message(self.spec, named, step.instruction, self.settings["keys"])
            if EXTENSION_KEY in client.metadata:
                request_id = (
                    request_of(step.episode_id) if step.mode == "evaluate" else step.episode_id
                )
                message[EXTENSION_KEY] = {"episode": request_id, "explore": step.mode == "train"}
                if client.metadata[EXTENSION_KEY].get("continues"):
                    message[EXTENSION_KEY] |= self._running_chunk(step)
            answer = client.infer(message)
            actions = read_actions(self.spec, answer)
            extension = read_extension(answer)
            check_horizon(actions, self.horizon, self.execute)
            self.horizon = 0 if EXTENSION_KEY in client.metadata else len(actions)
            self._on_chunk(step, actions, extension, time.monotonic() - since)
        except (AnswerError, RefusedRequestError, SpecError) as error:
            self._set_error(str(error))
        finally:
            self.busy = False

    def _running_chunk(self, step: TimeStep) -> dict[str, Any]:
        """Return the rest of the last chunk [SI], and the part usually begun by the answer."""
        with self.lock:
            left = (
                self.chunking.remaining(self._number(step))
                if self.chunking.mode == REAL_TIME
                else np.zeros(0)
            )
            if not len(left):
                return {}
            slowest_ns = 1e6 * max(list(self.times_ms)[-RECENT:], default=0.0)
            return {"left": left, "frozen": ceil(slowest_ns / self.period_ns) + (not self.lockstep)}

    def _number(self, step: TimeStep) -> float:
        """Return the index of a time step from its stamp, not rounded."""
        return to_ns(step.header.stamp) / self.period_ns

    def _on_chunk(
        self, step: TimeStep, actions: np.ndarray, extension: dict[str, Any], took_s: float
    ) -> None:
        with self.lock:
            if self.stopping.is_set():  # the publishers are there until then
                return
            self.times_ms.append(1e3 * took_s)
            if self.status.error:
                self._set_error("")
            passed = round((self.stamp_ns - to_ns(step.header.stamp)) / self.period_ns)
            other = self.newest_id != step.episode_id or step.instruction != self.instruction
            if self.idle or passed < 0 or self.outdated or other or not self.active:
                return
            if not self.execute:
                self.execute = len(actions)
                at_once = 1 if self.chunking.mode == TEMPORAL_ENSEMBLING else self.execute
                self.schedule.index += at_once - self.schedule.execute  # the due time is unchanged
                self.chunking.execute = self.schedule.execute = at_once
            if passed and self.nothing_in_play and step.mode != "train":
                self.pending = step.episode_id, actions, extension
            else:
                self._send(step, actions, extension, passed)

    def _send(
        self, step: TimeStep, actions: np.ndarray, extension: dict[str, Any], passed: int
    ) -> None:
        first_row = passed + (not self.lockstep)  # in lockstep no time passes meanwhile
        sent = self.chunking.merge(
            actions, self._number(step), first_row, bool(extension.get("continues"))
        )
        self.schedule.replan()
        self.schedule.advance(steps=passed)
        self.seq += 1
        self.status.version = extension.get("version", 0)
        chunk = action_chunk(
            self.spec,
            self.spec.action.from_si(sent),
            source="policy",
            session=self.session,
            seq=self.seq,
            version=self.status.version,
            observation_stamp=step.header.stamp,
            execute=min(self.chunking.execute, len(sent)),
        )
        if self.chunking.mode == RECEDING_HORIZON and "drawn" in extension:
            fill_drawn(chunk, extension["drawn"], extension.get("log_probs"))
        chunk.header.stamp = self._now(step)
        self.actions.publish(chunk)
        self.status.inferences += 1

    def _set_error(self, error: str) -> None:
        error = harmless_lines(error)
        with self.lock:
            if error == self.status.error or self.stopping.is_set():
                return
            same = NUMBER.sub("", error) == NUMBER.sub("", self.status.error)
            self.status.error = error
            if same:  # errors that differ only in numbers must not fill the log
                return
            if error:
                self.get_logger().warning(error)
            else:
                self.get_logger().info("the policy server answers")
            self._publish_status()

    def destroy_node(self) -> None:
        """Stop the thread first."""
        with self.lock:
            self.stopping.set()
        super().destroy_node()
