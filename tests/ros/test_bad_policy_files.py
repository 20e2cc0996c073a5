"""A bad policy file: refused once, said, and never loaded again; the last good one plays on.

And texts from outside.
"""

import io
import json
import re

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rlinf_msgs.msg import PolicyStatus, PolicyUpdate
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from std_msgs.msg import String

from rlinf_core.cli import arguments
from rlinf_core.episodes.checksums import file_sha256
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.policies.small.tanh_gaussian.policy import Actor
from rlinf_ros.escaping import escaped
from rlinf_ros.qos import profile
from rlinf_ros.station_node import StationNode
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
SMALL = tanh_gaussian.Config(hidden=(16,))


def bad(good, path, kind):
    with safe_open(good, "numpy") as file:
        metadata = file.metadata()
    config = json.dumps(json.loads(metadata["config"]) | {"kind": kind})
    save_file(load_file(good), path, metadata | {"config": config})
    return path


def update_of(version, path):
    return PolicyUpdate(version=version, path=str(path), sha256=file_sha256(path))


@pytest.mark.domain(137)
def test_a_bad_update_is_refused_once_and_the_last_good_policy_plays_on_after_a_restart(
    peer, tmp_path
):
    statuses = listen(peer, PolicyStatus, "policy/status")
    healths = []
    peer.node.create_subscription(
        DiagnosticArray, "/diagnostics", lambda message: healths.extend(message.status), 10
    )
    updates = peer.node.create_publisher(PolicyUpdate, "policy/update", profile("policy/update"))
    spec = start(peer, "policy")
    good = save_policy(Actor(spec, SMALL), tmp_path / "policy-00000003.safetensors")
    peer.spin(lambda: statuses, what="the policy")
    updates.publish(update_of(3, good))
    peer.spin(lambda: statuses[-1].version == 3, what="version 3")
    for version, kind, error in (
        (4, "\ud800", r"\ud800"),
        (5, "unittest.__main__", "unittest.__main__"),
        (6, "x\x1b[31m\r", r"x\x1b[31m\r"),
    ):
        path = bad(good, tmp_path / f"policy-{version:08d}.safetensors", kind)
        updates.publish(update_of(version, path))
        peer.spin(lambda: path.name in statuses[-1].error, what="the refusal")  # noqa: B023
        assert error in statuses[-1].error and statuses[-1].version == 3
    peer.spin(
        lambda: any(path.name in health.message for health in healths), what="its diagnostics"
    )

    sessions = {status.session for status in statuses}
    process = peer.supervisor.children["policy"].popen
    process.kill()  # the supervisor starts another, which hears of version 6 again
    peer.spin(
        lambda: statuses[-1].session not in sessions and statuses[-1].version == 3,
        what="the last valid policy",
    )
    assert path.name in statuses[-1].error, "the refusal is reported again"
    log = "".join(file.read_text() for file in (tmp_path / "logs").rglob("policy*"))
    assert "playing the last valid policy: version 3" in log
    assert "\x1b[31m" not in re.sub(r"\x1b\[0?m", "", log.replace("\x1b[31m[", "["))
    mended = save_policy(Actor(spec, SMALL), tmp_path / "policy-00000007.safetensors")
    updates.publish(update_of(7, mended))
    peer.spin(lambda: statuses[-1].version == 7 and not statuses[-1].error, what="version 7")


@pytest.mark.domain(148)
def test_every_text_is_logged_and_published(peer, capfd):
    node = StationNode("texts", context=peer.context, namespace="/station_a")
    try:
        texts = []
        peer.node.create_subscription(
            String, "words", lambda message: texts.append(message.data), 10
        )
        words = node.create_publisher(String, "words", 10)
        peer.spin(words.get_subscription_count, what="the subscription")
        for text in (
            "\ud800",
            "a\x1b[2J\x00b",
            "plain ü",
            b"\xff".decode("utf-8", "surrogateescape"),
        ):
            node.get_logger().warning(text)
            words.publish(String(data=text))
        for _ in range(3):
            node.get_logger().error("\udcff once", once=True)
        peer.spin(lambda: len(texts) == 4, what="all of them")
    finally:
        node.destroy_node()
    assert texts == ["\\ud800", "a\x1b[2J\x00b", "plain ü", "\\udcff"] or texts[1] == "a\x1b[2J"
    output = "".join(capfd.readouterr())
    assert (
        output.count("\\udcff once") == 1
        and output.count("\\ud800") == 1
        and "\x1b[2J" not in output
    )


def test_a_message_is_escaped_however_deep_its_texts_are():
    status = PolicyStatus(error="\ud800", path="ü", version=3)
    status.header.frame_id = "\udcff"
    message = escaped(status)
    assert (message.error, message.header.frame_id, message.path, message.version) == (
        "\\ud800",
        "\\udcff",
        "ü",
        3,
    )
    array = DiagnosticArray()
    assert escaped(array) == array


def test_a_command_prints_every_text(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("sys.stdout", out)
    arguments.open_streams()
    print("\ud800", file=out, flush=True)
    assert out.buffer.getvalue() == b"\\ud800\n"
