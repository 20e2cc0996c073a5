"""A machine on which no node can hear another says so at once, and what to do."""

import os
import subprocess
import sys

import pytest

from rlinf_core.core.ros import MULTICAST, network_trouble

ALONE = ["unshare", "-n", "sh", "-c"]  # a network without an interface that is up
CAN = subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0
alone = pytest.mark.skipif(not CAN, reason="expected the right to make a network (unshare -n)")


def trouble(address, before=""):
    code = f"from rlinf_core.core.ros import network_trouble; print(network_trouble({address!r}))"
    ran = subprocess.run(
        [*ALONE, f'{before} exec "$0" -c "$1"', sys.executable, code],
        text=True,
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_where_loopback_is_up_all_is_well():
    assert network_trouble() == ""


@alone
def test_a_loopback_that_is_down_is_named_with_what_to_do():
    reason = trouble("127.0.0.1")
    assert (
        "a loopback interface that is up, got: Network is unreachable" in reason
        and "sudo ip link set lo up" in reason
    )


@alone
def test_a_network_of_loopback_alone_is_enough_for_one_machine_and_takes_no_multicast():
    assert trouble("127.0.0.1", "ip link set lo up;") == ""
    assert "no network interface supports multicast" in trouble(MULTICAST, "ip link set lo up;")


@alone
@pytest.mark.parametrize("words", [["up", "demo"], ["status", "demo"], ["drill", "--only", "NaN"]])
def test_a_command_that_needs_the_network_is_refused_at_once(words, tmp_path):
    out = ["--out", str(tmp_path / "run")] if words[0] != "status" else []
    ran = subprocess.run(
        [*ALONE, 'exec "$0" "$@"', sys.executable, "-m", "rlinf_core.cli.main", *words, *out],
        text=True,
        capture_output=True,
        timeout=60,
        env=os.environ,
    )
    assert (
        ran.returncode == 1
        and "sudo ip link set lo up" in ran.stderr
        and "Traceback" not in ran.stderr
    )
