"""The recording of the last half minute before a fault, and the disk space for it."""

from rlinf_core.episodes.ring import Message
from rlinf_station import recorder
from rlinf_station.recorder import BlackBox
from tests.messages import NS


def test_the_black_box_has_the_last_half_minute(tmp_path):
    box = BlackBox(tmp_path)
    for second in range(41):
        box.add(Message("t", "k", second * NS, b"x"))
    assert [message.at_ns // NS for message in box._ring] == list(range(10, 41))


def test_of_faults_the_oldest_give_way_and_none_is_lost_for_want_of_room(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "GB", 100e-6)
    monkeypatch.setattr(recorder, "BYTES", 30_000)
    (tmp_path / "open/of_a_recorder_that_was_killed").mkdir(parents=True)
    box = BlackBox(tmp_path)
    assert not any((tmp_path / "open").iterdir())
    box.add(Message("/t", "std_msgs/msg/String", NS, b"x" * 20_000))
    written = [box.write(f"fault {number}") for number in range(8)]
    left = sorted((tmp_path / "closed").iterdir())
    assert 1 < len(left) < 8 and left[-1] == written[-1] and left == written[-len(left) :]
