"""Uplink: sends closed episodes to the trainer and fetches its policies.

No other node uses the network.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

from rlinf_msgs.msg import PolicyStatus, PolicyUpdate, TrainerStatus

from rlinf_core.core.errors import BridgeError
from rlinf_core.deploy.bridge.client import BridgeClient, Sender, last_policy, prune_policies
from rlinf_core.episodes.spool import MAX_GB, Spool
from rlinf_ros.diagnostics import ERROR, INACTIVE, OK, WARN, Diagnostics, Health
from rlinf_ros.lifecycle_node import Managed
from rlinf_ros.qos import publisher, subscription
from rlinf_ros.spinning import BACKGROUND, run
from rlinf_ros.station_node import StationNode

RETRY_S = 1.0
DAY_S = 86_400.0
HELD = ".held"  # name of a file in the spool that marks that the trainer forbids episodes
POLL_S = 0.1  # interval of the check whether the node is active
PAUSE_S = 0.5  # a trainer with very many stations answers at once


class Uplink(Managed, StationNode):
    """Sends episodes and fetches policies in two worker threads; the executor only publishes.

    While the trainer is unreachable, episodes wait in the spool. While inactive, the node asks
    nothing of the trainer, as if it were unreachable. An upload in progress is finished.
    """

    def __init__(self) -> None:
        super().__init__("uplink")
        station = self.declare_parameter("station", "station").value
        self.spool = Spool(
            self.declare_parameter("spool", "spool").value,
            max_gb=self.declare_parameter("spool_gb", MAX_GB).value,
        )
        self.policies = Path(self.declare_parameter("policies", "policies").value)
        self.policies_gb = MAX_GB
        self.declare_live(
            "policies_gb", MAX_GB, lambda gigabytes: setattr(self, "policies_gb", gigabytes)
        )
        address = self.declare_parameter("address", "127.0.0.1:50551").value
        folder = self.declare_parameter("credentials", "").value
        credentials = Path(folder) if folder else None
        tokens = [Path(path) for path in self.declare_parameter("tokens", [""]).value if path]
        self.client, self.reporter = (
            BridgeClient(address, station, credentials, tokens=tokens) for _ in range(2)
        )
        self.specs = json.dumps(self.declare_structure("specs"))
        self.limits_hash = self.declare_parameter("limits_hash", "").value
        self.version = -1
        self.stopping = threading.Event()
        self.lock = threading.Lock()  # held to publish from a worker, and to begin the end
        self.troubles = {"up": "", "down": ""}  # problem of each worker
        self.is_registered = False  # whether the trainer knows this station
        self.hold_file = self.spool.root / HELD
        self.held = self.hold_file.exists()
        self.policy = PolicyStatus(version=-1)
        subscription(self, "policy/status", self._on_policy)
        self.updates = publisher(self, "policy/update")
        self.statuses = publisher(self, "trainer/status")
        self.workers = [
            threading.Thread(target=work, daemon=True) for work in (self._upload, self._fetch)
        ]
        for worker in self.workers:
            worker.start()
        self.health = Health(WARN, "has not contacted the trainer yet")
        self.create_timer(0.5, self._report)
        self.diagnostics = Diagnostics(self, lambda: self.health)
        self._check_certificate()
        self.create_timer(DAY_S, self._check_certificate)

    def _on_policy(self, status: PolicyStatus) -> None:
        self.policy = status

    def _upload(self) -> None:
        sender = Sender(self.spool, self.client, self.get_logger().error, lambda: self.active)
        while not self.stopping.wait(0.1):
            if not self.active:
                continue
            try:
                trouble = sender.send_all()
            except Exception as error:  # this thread must survive any disk error
                trouble = f"{type(error).__name__}: {error}"
            self._record_trouble("up", trouble)
            if trouble:
                self._wait_before_retry()

    def _fetch(self) -> None:
        base = last_policy(self.policies)
        while not self.stopping.is_set():
            if not self.active:
                self.stopping.wait(POLL_S)
                continue
            try:
                fetched = self.reporter.next_policy(self.version, self.policies, base=base)
                if fetched is not None:
                    prune_policies(
                        self.policies, self.policies_gb, fetched.version, self.policy.version
                    )
            except Exception as error:  # this thread must survive any error, too
                is_expected = isinstance(error, BridgeError)
                trouble = str(error) if is_expected else f"{type(error).__name__}: {error}"
                self._record_trouble("down", trouble)
                if trouble:
                    self._wait_before_retry()
                continue
            self._record_trouble("down", "")
            if fetched is None:
                self.stopping.wait(PAUSE_S)
            else:
                base = fetched
                self.version = fetched.version
                update = PolicyUpdate(
                    version=self.version, path=str(fetched.path), sha256=fetched.sha256
                )
                with self.lock:
                    if not self.stopping.is_set():  # the publisher is there until then
                        self.updates.publish(update)

    def _check_certificate(self) -> None:
        if self.client.credentials and (warning := self.client.credentials.warning()):
            self.get_logger().warning(warning)

    def _record_trouble(self, direction: str, trouble: str) -> None:
        """Record the problem of one direction, or an empty string; log a new problem once."""
        if trouble and trouble != self.troubles[direction]:
            self.get_logger().warning(
                f"{trouble}. Nothing is lost: episodes wait in {self.spool.root / 'closed'}"
            )
        self.troubles[direction] = trouble

    def _wait_before_retry(self) -> None:
        """Wait RETRY_S, or until the node stops."""
        self.stopping.wait(RETRY_S)

    @property
    def trouble(self) -> str:
        """The problems, each once; empty if there are none."""
        return "; ".join(dict.fromkeys(filter(None, self.troubles.values())))

    def _report(self) -> None:
        try:
            backlog = len(self.spool.closed())
            room = {"set_aside": self.spool.set_aside(), "spool_full": self.spool.full()}
        except OSError as error:
            trouble = f"spool {self.spool.root}: {error.strerror or error}. Check the disk"
            self.health = Health(ERROR, trouble, {})
            status = TrainerStatus(held=self.held, spool_full=1.0, message=trouble)
            status.header.stamp = self.get_clock().now().to_msg()
            self.statuses.publish(status)  # no episode begins, like with a full spool
            return
        full = room["spool_full"] >= 1.0
        status = TrainerStatus(
            connected=False, backlog=backlog, held=self.held, message=self.trouble, **room
        )
        if not self.active:
            self.health = Health(WARN, INACTIVE, {"backlog": backlog, **room})
            status.message = f"the uplink is {INACTIVE}"
            status.header.stamp = self.get_clock().now().to_msg()
            self.statuses.publish(status)
            return
        try:
            reply = self.reporter.report(
                backlog,
                self.version,
                timeout_s=0.4,
                playing=self.policy.version,
                policy_error=self.policy.error,
                **room,
            )
            reason, refused = "", False
            if self.specs and not (self.is_registered and reply.registered):
                reason, refused = self._register()
            self._hold(reply.held or refused)
            status = TrainerStatus(
                connected=True,
                backlog=backlog,
                held=self.held or bool(reason),
                phase=reply.phase,
                policy_version=reply.policy_version,
                updates=reply.updates,
                episodes=reply.episodes,
                transitions=reply.transitions,
                update_ratio=reply.update_ratio,
                accepting=reply.accepting and not (full or self.held or reason),
                names=list(reply.metrics),
                values=list(reply.metrics.values()),
                message=reply.message or reason or self.trouble,
                **room,
            )
        except BridgeError as error:
            status.message = str(error)
            if self.held:
                status.message += "; the trainer pauses new episodes"
        values = {"backlog": backlog, **room}
        if full:
            self.health = Health(ERROR, "the spool is full", values)
        elif status.connected and not self.trouble and not room["set_aside"]:
            self.health = Health(OK, status.phase, values)
        else:
            reason = status.message or f"{room['set_aside']} episodes were refused"
            self.health = Health(WARN, reason, values)
        status.header.stamp = self.get_clock().now().to_msg()
        self.statuses.publish(status)

    def _hold(self, held: bool) -> None:
        """Store whether the trainer forbids episodes; a restart without a trainer keeps to it."""
        if held != self.held:
            self.held = held
            with contextlib.suppress(OSError):  # then only a restart would forget it
                if held:
                    self.hold_file.touch()
                else:
                    self.hold_file.unlink()

    def _register(self) -> tuple[str, bool]:
        """Register this station after its start, and with a trainer that does not know it.

        Returns:
            The reason why it may not play now, and whether the trainer gave it.
        """
        try:
            reason = self.reporter.register(self.specs, self.limits_hash, timeout_s=0.4)
            self.is_registered = True
            if reason:
                self.get_logger().error(f"the trainer refuses this station: {reason}")
            return reason, bool(reason)
        except BridgeError as error:
            self.get_logger().warning(f"this station cannot register: {error}")
            return str(error), False

    def destroy_node(self) -> None:
        """Stop the workers first."""
        with self.lock:
            self.stopping.set()
        super().destroy_node()


def main() -> None:
    """Entry point."""
    run(Uplink, BACKGROUND)


if __name__ == "__main__":
    main()
