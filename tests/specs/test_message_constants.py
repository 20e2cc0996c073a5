"""Words of messages are constants, and constants leave the types as they are: ROS of before and
after hear each other.
"""

from pathlib import Path

import pytest

from rlinf_core.episodes.messages import typestore
from rlinf_core.episodes.validate import MODES

INTERLOCK = Path(__file__).resolve().parents[2] / "rlinf_core/interlock"
HASHES = {  # of the types before they had constants, as rosidl computes them (REP-2016)
    "ActionChunk": "RIHS01_60f0e69c5ad3d5a8f529d25219184ed3a8f306194ef6a06afb996623ea643b6f",
    "Applied": "RIHS01_e375ead68d610e484f08ab4ad6c41c7cc3af974014b77553d10322997b8e96bc",
    "EpisodeEvent": "RIHS01_78abe29e68865f9674b677002a4cf2b7b1d0db80846414e1b4797eb6763a948d",
    "NamedVector": "RIHS01_adb126e6615fbe28a233edae9b1b2ea1ec3a45eab70dbaf160cb5f224ff60c83",
    "PolicyStatus": "RIHS01_64edc62714074e0bdce0870dc3fe8c67c5c1916497deb5c9e652e401a04f2c31",
    "PolicyUpdate": "RIHS01_09f96153935c30eaefa26458ef767742da3c38903cb0a6a7837111e0f9762800",
    "SafetyEvent": "RIHS01_f9d5559452bec593e24d62ea9822c4fee05a11dfa5c1b0746c9758a2a0edf198",
    "SafetyState": "RIHS01_d01087e95de2fcf54b948b54111116efc5111c996505eeb8f78e70eb0e624a75",
    "TimeStep": "RIHS01_ca7a469505741d657b77d8f16dcdc0a795a2707facad3f1a440711cbf15121ac",
    "TrainerStatus": "RIHS01_8b5585e62832d1c7b59b2a648fc25822a9d4029cf61db330a7ccfd6d7d6c3bc5",
}
WORDS = {
    "EpisodeEvent": {name.upper(): name for name in MODES},
    "TimeStep": {name.upper(): name for name in MODES},
    "ActionChunk": {
        name.upper(): name for name in ("policy", "operator", "tcp_delta", "joint_delta")
    },
    "TrainerStatus": {name.upper(): name for name in ("waiting", "sft", "online", "stopped")},
    "SafetyEvent": {
        name.upper(): name for name in ("mode", "refused", "dropped", "limited", "reseeded")
    },
    "SafetyState": {
        **{
            name.upper(): name
            for name in (
                "policy",
                "operator",
                "stale_state",
                "stale_command",
                "operator_silent",
                "handing_back",
                "contact",
                "divergence",
            )
        },
        **{
            name.upper(): f"{name}:"
            for name in ("estop", "estop_silent", "robot", "foreign_publisher")
        },
    },
}


@pytest.mark.parametrize("name", HASHES)
def test_a_type_is_what_it_was_without_constants(name):
    assert typestore().hash_rihs01(f"rlinf_msgs/msg/{name}") == HASHES[name]


@pytest.mark.parametrize("name", WORDS)
def test_each_word_is_a_constant(name):
    constants = {
        key: value
        for key, kind, value in typestore().fielddefs[f"rlinf_msgs/msg/{name}"][0]
        if kind == "string"
    }
    assert constants == WORDS[name]


def test_the_interlock_says_each_cause_that_is_a_constant():
    source = "".join(path.read_text() for path in INTERLOCK.glob("*.py"))
    for cause in WORDS["SafetyState"].values():
        assert f'"{cause}' in source, cause
