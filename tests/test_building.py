import time

from rlinf_core.building import progress


def test_a_build_says_each_tenth_part_once_and_passes_every_line_on(capsys):
    lines = ["-- looking\n", "[1/20] a\n", "[3/20] b\n", "[3/20] c\n", "[ 50%] d\n", "[20/20] e\n"]
    assert list(progress(lines, "compiling")) == lines
    assert capsys.readouterr().out.splitlines() == ["  15 % compiled", "  50 % compiled", "  100 % compiled"]


def test_a_build_that_takes_its_time_says_that_it_goes_on(capsys):
    def slow():
        time.sleep(0.35)
        yield "[1/1] done\n"

    assert list(progress(slow(), "generating", silence_s=0.1)) == ["[1/1] done\n"]
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "  100 % compiled" and 2 <= len(said) - 1 < 50, said
    assert all(line.startswith("  still generating, ") for line in said[:-1])
