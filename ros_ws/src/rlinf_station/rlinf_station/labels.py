"""The operator's labels (topic ``label``): the scene is ready, or a verdict on an episode.

A verdict on the episode in play is success, failure, rerecord or discard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String

from rlinf_core.robots.operators.device import LABELS
from rlinf_core.tasks.task import StepResult
from rlinf_ros.qos import publisher, subscription
from rlinf_ros.workarounds import AwaitFuture

AGAIN, DISCARDED = "the operator requested another take", "the operator discarded it"
CANCELLED, REMARK_S = "cancelled", 5.0
REMARKS = {"rerecord": AGAIN, "discard": DISCARDED}
PROMPT = (
    "reset the scene, then confirm that it is ready: g at a keyboard, Ready on the page, or a "
    "button"
)


class Labels:
    """The newest label of the episode in play.

    A label between two episodes counts for neither, except that the scene is ready.

    Args:
        node: subscribes.
        abandon: called with the reason if the episode in play must not count.
        playing: returns whether an episode is in play.
    """

    def __init__(
        self, node: Node, abandon: Callable[[str], None], playing: Callable[[], bool]
    ) -> None:
        self.node = node
        self.abandon = abandon
        self.playing = playing
        self.label = ""
        self.question = ""
        self.has_remark = False  # whether a remark was added to the question
        self.may_begin: Callable[[], bool] = lambda: True
        self.answer: Future | None = None  # a person's answer to the question
        self.is_cancelled = False  # whether no further episode is wanted
        self.prompts = publisher(node, "prompt")
        self.remark_timer = node.create_timer(REMARK_S, self._drop_remark)
        self.prompt("")
        self.remark_timer.cancel()
        subscription(node, "label", self._on_label)

    def _on_label(self, message: String) -> None:
        if message.data not in LABELS:
            self.node.get_logger().error(
                f"label: expected one of {', '.join(LABELS)}, got {message.data[:50]!r}"
            )
        elif message.data != "ready" and not self.playing():
            self._remark(f"'{message.data}' came while no episode was in play and is ignored")
        elif message.data in REMARKS:
            self.abandon(REMARKS[message.data])
        elif message.data == "ready":
            self._on_ready()
        else:
            self.label = message.data

    def begin(self) -> None:
        """Begin another episode."""
        self.label = ""
        if self.has_remark:
            self.prompt(self.question)

    def with_verdict(self, result: StepResult) -> StepResult:
        """Return the time step with the operator's verdict, which precedes the task's reward."""
        if not self.label:
            return result
        success = self.label == "success"
        return replace(
            result,
            success=success,
            failure=not success,
            truncated=False,
            reward=result.reward + success - result.success,
        )

    async def ready(self, question: str, may_begin: Callable[[], bool]) -> bool:
        """Ask a person and wait for their word, however long; return False once it is cancelled.

        A word before the question does not count, nor one while the episode may not begin.
        """
        if self.is_cancelled:
            return False
        self.may_begin = may_begin
        self.answer = Future(executor=self.node.executor)
        self.prompt(question)
        ready = await AwaitFuture(self.answer)
        self.prompt("")
        return bool(ready)

    def _on_ready(self) -> None:
        if self.answer is None or self.answer.done():
            if not self.playing():
                self._remark("'ready' came before the question, so it is ignored")
        elif self.may_begin():
            self.answer.set_result(True)
        else:
            self._remark(
                "ready: the interlock does not let the arm move; arm it, then confirm again"
            )

    def _remark(self, remark: str) -> None:
        """Publish a remark about a void word, together with the question."""
        self.node.get_logger().warning(remark)
        self.prompts.publish(String(data=f"{remark}. {self.question}".rstrip()))
        self.has_remark = True
        self.remark_timer.reset()

    def _drop_remark(self) -> None:
        """Repeat the prompt without the remark."""
        self.remark_timer.cancel()
        if self.has_remark:
            self.prompt(self.question)

    def cancel(self) -> None:
        """Cancel: no further episode is wanted."""
        self.is_cancelled = True
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(False)

    def prompt(self, text: str) -> None:
        """Publish the question to a person, or what they wait for."""
        self.question = text
        self.has_remark = False
        self.prompts.publish(String(data=text))
