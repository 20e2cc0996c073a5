"""rlinf plan prints and draws where a run's parts execute."""

import pytest

from rlinf_core.cli.main import main


@pytest.mark.parametrize("picture", ["plan.svg", "plan.png"])
def test_a_plan_is_printed_and_drawn(capsys, tmp_path, picture):
    path = tmp_path / picture
    assert (
        main(["plan", "sim_sac", "--set", "placement=auto", "--cpus", "2", "--picture", str(path)])
        == 0
    )
    text = capsys.readouterr().out
    for part in (
        "environment  workers",
        "environment -> data: experience",
        "layout: 2 workers",
        "expected: ",
        "runner-up: ",
        "a first guess",
        "refused: ",
    ):
        assert part in text, part
    assert path.stat().st_size > 5000


def test_todays_keys_are_planned_as_they_stand_and_a_better_layout_is_named(capsys):
    assert main(["plan", "sim_sac", "--cpus", "4", "--set", "placement={workers: 1}"]) == 0
    text = capsys.readouterr().out
    assert "layout: 1 worker, updates in the trainer's process, in turns" in text
    assert (
        "placement.auto=true would choose: 2 workers, updates in the trainer's process, pipelined"
        in text
    )


def test_stations_set_their_own_rate(capsys):
    assert main(["plan", "demo"]) == 0
    text = capsys.readouterr().out
    assert "(fixed rate)" in text and "the stations set the rate" in text


def test_fixed_points_that_cannot_be_end_in_one_line(capsys):
    assert (
        main(["plan", "sim_ppo", "--cpus", "2", "--set", "placement={auto: true, learners: 40}"])
        == 1
    )
    assert "2 CPUs carry at most 16 processes" in capsys.readouterr().err
