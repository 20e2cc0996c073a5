"""A short form of benchmarks/fleet_soak.py, whose large one is in benchmarks/results; its checker
sees what is wrong.
"""

import shutil

import pytest

from benchmarks.fleet_soak import arrival_lines, check, id_of, name_of, soak


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_or_taken_twice_whoever_is_killed_and_the_checker_would_see_it(tmp_path):
    stations, episodes_per_station = 3, 34
    figures = soak(
        tmp_path,
        stations * episodes_per_station,
        stations,
        cut_s=1.0,
        kills=3,
        cuts=2,
        station_kills=2,
        seed=1,
    )
    assert figures["episodes"] == 102 and figures["lost"] == figures["duplicated"] == 0, figures
    assert figures["kills"] == 3 and figures["cuts"] == 2 and figures["station_kills"] >= 1, figures

    inbox, sent = tmp_path / "run/inbox", tmp_path / name_of(2) / "spool/sent"
    shutil.rmtree(inbox / id_of(0, 5))
    (file,) = (inbox / id_of(1, 33)).glob("*.mcap")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    shutil.rmtree(sent / id_of(2, 0))
    with open(tmp_path / "run/journal.jsonl", "ab") as journal:
        journal.write(arrival_lines(tmp_path / "run")[7] + b"\n")
    assert check(tmp_path, stations, episodes_per_station) == {"lost": 3, "duplicated": 1}
    assert check(tmp_path, stations, episodes_per_station + 1)["lost"] > 3, (
        "what was to be produced, and is nowhere"
    )
