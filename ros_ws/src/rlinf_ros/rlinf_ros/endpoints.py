"""Endpoint matching: whether the nodes of a lockstep station hear each other on each topic.

DDS matches a publisher with a subscription twice, once in each of their processes, at different
times. A message published in between is lost, or arrives with a later heartbeat. In lockstep one
lost message changes an episode. Each node of the loop therefore reports its matched publishers and
subscriptions on ``endpoints``, and no episode begins before all reports agree.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any

from rclpy.node import Node
from std_msgs.msg import String

from rlinf_ros.memory_bus import bus
from rlinf_ros.qos import lossless_profile, publisher, subscription

TOPIC = "endpoints"
POLL_S, REFRESH_POLLS = 0.05, 20
# in one process, after REFRESH_POLLS without a change: only nodes elsewhere can change a report
SETTLED_POLLS = 100
# not part of a time step
ELSEWHERE = ("/rosout", "/parameter_events", "/diagnostics", "/tf", "/tf_static")
# by topic: the node's "own" endpoints, and those of "others"
Report = dict[str, dict[str, list[int]]]
Counts = dict[tuple[str, str], list[int]]  # by topic and direction: one count per own endpoint


class EndpointReport:
    """Publishes, latched, the endpoints that a node knows on each of its topics.

    Make it before the node's other publishers. Discovery keeps their order, so a node that knows
    one of them knows that a report comes.

    Attributes:
        nodes: the nodes of this process whose endpoints count. Add helper nodes, which nobody
            spins.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes = [node]
        self._reports = publisher(node, TOPIC)
        self._counts: Counts = {}
        self._published = ""
        self._polls = 0
        self._changed_poll = 0  # poll of the last change, or of the last try without a report
        node.create_timer(POLL_S, self._poll)

    def _poll(self) -> None:
        self._polls += 1
        is_settled = bus() is not None and self._polls - self._changed_poll > REFRESH_POLLS
        if is_settled and self._polls % SETTLED_POLLS:
            return
        counts = self._matched()
        if counts == self._counts and self._polls % REFRESH_POLLS:
            return
        report = self._report(counts)
        if report is None:
            self._changed_poll = self._polls
            return  # discovery is still at work: retry at the next poll
        self._counts = counts
        document = json.dumps([self.node.get_fully_qualified_name(), report])
        if document != self._published:
            self._changed_poll = self._polls
            self._published = document
            self._reports.publish(String(data=document))

    def _matched(self) -> Counts:
        """Return the number of matches of each own endpoint."""
        counts: Counts = {}
        for node in self.nodes:
            for topic, direction, count in [
                *(
                    (endpoint.topic_name, "out", endpoint.get_subscription_count)
                    for endpoint in node.publishers
                ),
                *(
                    (endpoint.topic_name, "in", endpoint.get_publisher_count)
                    for endpoint in node.subscriptions
                ),
            ]:
                if topic not in ELSEWHERE:
                    counts.setdefault((topic, direction), []).append(count())
        return counts

    def _report(self, counts: Counts) -> Report | None:
        """Return the matches of each topic.

        None while fewer endpoints of reporting nodes are matched than are known.
        """
        names = {self.node.get_fully_qualified_name()}
        reporting = {
            _name(info) for info in self.node.get_publishers_info_by_topic(self._reports.topic_name)
        }
        report: Report = {}
        for topic in sorted({topic for topic, _ in counts}):
            publishers = self.node.get_publishers_info_by_topic(topic)
            subscriptions = self.node.get_subscriptions_info_by_topic(topic)
            for direction, infos in (("out", subscriptions), ("in", publishers)):
                reporting_count = sum(_name(info) in reporting for info in infos)
                if min(counts.get((topic, direction), [reporting_count])) < reporting_count:
                    return None
            ids: dict[str, list[int]] = {"own": [], "others": []}
            for info in (*publishers, *subscriptions):
                owner = "own" if _name(info) in names else "others"
                ids[owner].append(zlib.crc32(bytes(info.endpoint_gid)))
            report[topic] = {owner: sorted(gids) for owner, gids in ids.items()}
        return report


class Endpoints:
    """The reports of all nodes of the loop, in the node that waits for them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.reports = dict[str, Report]()
        self._topic = subscription(
            node, TOPIC, self._on_report, quality=lossless_profile(TOPIC)
        ).topic_name

    def _on_report(self, message: String) -> None:
        name, report = json.loads(message.data)
        self.reports[name] = report

    def unmatched(self) -> str:
        """Return, in words, the nodes that have not matched each other; empty if all have."""
        names = {_name(info) for info in self.node.get_publishers_info_by_topic(self._topic)}
        if silent := sorted(names - self.reports.keys()):
            return f"no report on '{TOPIC}' from {', '.join(silent)}"
        return ", ".join(_unmatched({name: self.reports[name] for name in sorted(names)}))


def _unmatched(reports: dict[str, Report]) -> Iterable[str]:
    for name, report in reports.items():
        for topic, ids in report.items():
            for other, other_report in reports.items():
                if (
                    other != name
                    and topic in other_report
                    and not {*ids["own"]} <= {*other_report[topic]["others"]}
                ):
                    yield f"{topic}: {other} has not matched {name}"


def _name(info: Any) -> str:
    """Return the node of an endpoint; a helper node counts as its owner."""
    node = str(info.node_name)
    for helper in ("_inputs", "_poses"):
        node = node.removesuffix(helper)
    return f"{info.node_namespace.rstrip('/')}/{node}"
