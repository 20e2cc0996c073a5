import time

from rlinf_core.launch import build_messages
from rlinf_core.launch.build_messages import progress


def test_a_build_says_each_tenth_part_once_and_passes_every_line_on(capsys):
    lines = ["-- looking\n", "[1/20] a\n", "[3/20] b\n", "[3/20] c\n", "[ 50%] d\n", "[20/20] e\n"]
    assert list(progress(lines, "compiling")) == lines
    assert capsys.readouterr().out.splitlines() == [
        "  15 % compiled",
        "  50 % compiled",
        "  100 % compiled",
    ]


def test_a_build_that_takes_its_time_says_that_it_goes_on(monkeypatch):
    lines = []
    monkeypatch.setattr(
        build_messages, "print", lambda line, flush: lines.append(line), raising=False
    )

    def slow():
        while len(lines) < 2:
            time.sleep(0.01)
        yield "[1/1] done\n"

    assert list(progress(slow(), "generating", silence_s=0.02)) == ["[1/1] done\n"]
    assert lines[-1] == "  100 % compiled" and 2 <= len(lines) - 1 < 50, lines
    assert all(line.startswith("  still generating, ") for line in lines[:-1])


def test_lines_of_the_compiler_that_nobody_sees_are_no_sign_of_life(monkeypatch):
    printed = []
    monkeypatch.setattr(
        build_messages, "print", lambda line, flush: printed.append(line), raising=False
    )

    def steps():
        for _ in range(2000):
            yield "[1/100] a part\n"
            if len(printed) > 1:
                return
            time.sleep(0.005)

    list(progress(steps(), "compiling", silence_s=0.02))
    assert [line.partition(",")[0] for line in printed[:2]] == ["  still compiling"] * 2


def test_messages_that_the_ros_has_by_now_leave_nothing_that_hides_its_own(tmp_path, monkeypatch):
    built, theirs = tmp_path / "built", tmp_path / "theirs"
    (theirs / "share/franka_msgs").mkdir(parents=True)
    monkeypatch.setenv("ROS_DISTRO", "jazzy")
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"{built}:{theirs}")
    monkeypatch.setattr(build_messages, "built_messages", lambda: built)
    monkeypatch.setattr(build_messages, "message_packages", lambda name: built / "lib/python")
    monkeypatch.setattr(build_messages, "_build", lambda sources, prefix, step: None)
    library = built / "lib/libfranka_msgs_of_mine.so"
    for file in (
        "share/franka_msgs/package.xml",
        "lib/python/franka_msgs/__init__.py",
        library,
        "lib/libfranka_msgs__rosidl_generator_c.so",
        "share/ament_index/resource_index/packages/franka_msgs",
    ):
        (built / file).parent.mkdir(parents=True, exist_ok=True)
        (built / file).touch()
    build_messages.build_messages()
    assert [path for path in built.rglob("*") if path.is_file()] == [library]
