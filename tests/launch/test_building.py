"""The commands, output and files of a build of the messages."""

import os
import re
import shutil
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from rlinf_core.core.errors import RlinfError
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


CMAKE = """#!/bin/sh
echo "$@" >> "$CMAKE_LOG"
env | grep -E '^(PATH|VIRTUAL_ENV|AMENT_PREFIX_PATH|CMAKE_PREFIX_PATH)=' > "$CMAKE_LOG.env"
echo "[ 50%] a part"
if [ "$1" = "$CMAKE_FAILS" ]; then seq 1 30; echo "no rosidl"; exit 3; fi
if [ "$1" = --install ]; then
  mkdir -p "$CMAKE_SITE/$CMAKE_NAME" "$CMAKE_PREFIX/share/$CMAKE_NAME"
  touch "$CMAKE_SITE/$CMAKE_NAME/__init__.py"
fi
"""


class Machine:
    """One with the tools that a test names, which build nothing, and a package of messages."""

    def __init__(self, folder, monkeypatch, tools, name="my_msgs"):
        self.name, self.prefix, self.log = name, folder / "prefix", folder / "cmake.log"
        self.site = folder / "prefix/lib/python"
        self.sources = folder / f"sources/{name}"
        (self.sources / "msg").mkdir(parents=True)
        (self.sources / "msg/One.msg").write_text("float64 a\n")
        (self.sources / "README.md").write_text("words\n")
        self.tools = folder / "bin"
        self.tools.mkdir()
        self.base = folder / "base"  # a system without a compiler
        self.base.mkdir()
        for tool in ("sh", "env", "grep", "seq", "mkdir", "touch"):
            (self.base / tool).symlink_to(shutil.which(tool))
        for tool in tools:
            (self.tools / tool).write_text(CMAKE)
            (self.tools / tool).chmod(0o755)
        for key, value in {
            "CMAKE_LOG": self.log,
            "CMAKE_SITE": self.site,
            "CMAKE_PREFIX": self.prefix,
            "CMAKE_NAME": name,
            "VIRTUAL_ENV": folder,
            "PATH": f"{self.base}:{self.tools}:/nowhere",
        }.items():
            monkeypatch.setenv(key, str(value))
        for variable in ("ROS_DISTRO", "AMENT_PREFIX_PATH", "CMAKE_FAILS"):
            monkeypatch.delenv(variable, raising=False)
        self.headers = folder / "include"
        self.headers.mkdir()
        (self.headers / "Python.h").touch()
        monkeypatch.setattr(sys, "executable", str(self.tools / "python"))
        monkeypatch.setattr(sys, "prefix", str(folder / "wheels"))
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(self.headers)})
        monkeypatch.setattr(build_messages, "message_packages", self.packages)

    def packages(self, name):
        return self.site if (self.site / name / "__init__.py").exists() else None

    def build(self):
        build_messages._build(self.sources, self.prefix, "[2 of 3] ")

    def commands(self):
        return self.log.read_text().splitlines()

    def environment(self):
        lines = Path(f"{self.log}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)


TOOLS = ("cmake", "cc", "c++", "ninja")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return lambda tools=TOOLS: Machine(tmp_path, monkeypatch, tools)


def test_messages_are_configured_compiled_and_installed_once(machine, capsys):
    here = machine()
    here.build()
    configure, build, install = here.commands()
    folder = build.split()[1]
    assert configure == (
        f"-S {here.sources} -B {folder} -DCMAKE_INSTALL_PREFIX={here.prefix} -DBUILD_TESTING=OFF "
        f"-G Ninja -DPython3_EXECUTABLE={here.tools}/python"
    )
    assert build == f"--build {folder} --parallel {os.cpu_count()}"
    assert install == f"--install {folder}"
    assert Path(folder).name.startswith("my_msgs-") and not Path(folder).exists()
    assert here.environment() == {
        "PATH": f"{here.tools}:{here.base}:/nowhere",
        "AMENT_PREFIX_PATH": sys.prefix,
        "CMAKE_PREFIX_PATH": sys.prefix,
    }, "the wheels' own, and no VIRTUAL_ENV, which CMake would prefer"
    python = sys.version.split()[0]
    output = capsys.readouterr().out.splitlines()
    printed = [line for line in output if "still" not in line]  # of a busy machine
    assert printed[0] == f"[2 of 3] my_msgs: compiling for Python {python}"
    assert printed[1::2][:3] == [
        "  looking for the compiler, Python and ROS",
        "  generating and compiling",
        "  installing",
    ]
    assert re.fullmatch(rf"my_msgs: built in \d\d? s, into {here.prefix}", printed[-1])
    stamp = (here.prefix / "share/my_msgs/built_from").read_text()
    assert stamp.endswith(f" {python} {sys.prefix}\n")
    here.build()
    assert len(here.commands()) == 3
    assert capsys.readouterr().out == f"[2 of 3] my_msgs: up to date in {here.prefix}\n"


@pytest.mark.parametrize(
    "change, builds",
    [
        (lambda here: (here.sources / "README.md").write_text("others\n"), False),
        (lambda here: (here.sources / "notes.rst").write_text("new\n"), False),
        (lambda here: (here.sources / "msg/One.msg").write_text("float32 a\n"), True),
        (lambda here: (here.sources / "msg/One.msg").rename(here.sources / "msg/Two.msg"), True),
        (lambda here: (here.site / "my_msgs/__init__.py").unlink(), True),
        (lambda here: (here.prefix / "share/my_msgs/built_from").unlink(), True),
    ],
)
def test_messages_are_built_again_when_what_they_are_made_of_changes(machine, change, builds):
    here = machine()
    here.build()
    change(here)
    here.build()
    assert len(here.commands()) == (6 if builds else 3)


def test_a_sourced_ros_builds_with_its_own_python(machine, monkeypatch):
    here = machine(("cmake", "cc", "c++"))
    monkeypatch.setenv("ROS_DISTRO", "jazzy")
    monkeypatch.setenv("AMENT_PREFIX_PATH", "/opt/ros/jazzy")
    here.build()
    configure = here.commands()[0]
    assert configure.endswith(" -DBUILD_TESTING=OFF"), "neither Ninja nor a Python"
    assert here.environment() == {
        "PATH": f"{here.base}:/nowhere:{here.tools}",
        "AMENT_PREFIX_PATH": "/opt/ros/jazzy",
    }
    assert (here.prefix / "share/my_msgs/built_from").read_text().endswith(" jazzy\n")


@pytest.mark.parametrize(
    "tools, words",
    [
        (
            ("cc", "c++"),
            "expected the tool cmake, .* Run: .*install.py ros, or apt-get install cma",
        ),
        (("cmake", "c++"), "my_msgs: expected the tool cc, .* Run: apt-get install gcc"),
        (("cmake", "cc"), r"expected the tool c\+\+, .* Run: apt-get install g\+\+"),
    ],
)
def test_a_tool_that_is_missing_is_named_with_what_brings_it(machine, tools, words):
    here = machine(tools)
    with pytest.raises(RlinfError, match=words):
        here.build()
    assert not here.log.exists()


def test_python_without_its_headers_is_refused_with_the_package_that_has_them(machine):
    here = machine()
    (here.headers / "Python.h").unlink()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(RlinfError, match=f"headers in {here.headers}. .* python{version}-dev"):
        here.build()


def test_a_build_that_fails_ends_with_its_last_lines_and_leaves_no_stamp(machine, monkeypatch):
    here = machine()
    monkeypatch.setenv("CMAKE_FAILS", "--build")
    with pytest.raises(RlinfError) as error:
        here.build()
    first, *lines = str(error.value).splitlines()
    assert first == (
        "my_msgs: `cmake --build` failed against the ROS wheels (.venv/bin/python "
        "scripts/install.py ros):"
    )
    assert lines == [*(str(number) for number in range(7, 31)), "no rosidl"], "25 of them"
    assert len(here.commands()) == 2 and not (here.prefix / "share/my_msgs/built_from").exists()
    monkeypatch.setenv("ROS_DISTRO", "jazzy")
    monkeypatch.setenv("AMENT_PREFIX_PATH", "/opt/ros/jazzy")
    with pytest.raises(RlinfError, match="failed against the sourced ROS:\n"):
        here.build()


def test_a_tool_that_cannot_be_run_is_said(machine):
    here = machine()
    (here.tools / "cmake").write_text("#!/nowhere\n")
    with pytest.raises(RlinfError, match="my_msgs: cannot run cmake: .*No such file"):
        here.build()


def test_all_packages_are_built_but_those_that_the_sourced_ros_has(tmp_path, monkeypatch, capsys):
    theirs, built = tmp_path / "theirs", []
    (theirs / "share/b_msgs").mkdir(parents=True)
    folders = [tmp_path / name for name in ("a_msgs", "b_msgs", "c_msgs")]
    monkeypatch.setenv("AMENT_PREFIX_PATH", f":{tmp_path}/built:{theirs}")
    monkeypatch.setenv("ROS_DISTRO", "jazzy")
    (tmp_path / "built/share/c_msgs").mkdir(parents=True)
    for name, value in {
        "built_messages": tmp_path / "built",
        "message_definitions": folders,
        "message_sources": tmp_path / "rlinf_msgs",
    }.items():
        monkeypatch.setattr(build_messages, name, lambda value=value: value)
    monkeypatch.setattr(build_messages, "message_packages", lambda name: None)
    monkeypatch.setattr(build_messages, "_build", lambda *arguments: built.append(arguments))
    assert build_messages.build_messages() == tmp_path / "built"
    assert built == [
        (tmp_path / "rlinf_msgs", tmp_path / "built", "[1 of 4] "),
        (tmp_path / "a_msgs", tmp_path / "built", "[2 of 4] "),
        (tmp_path / "c_msgs", tmp_path / "built", "[4 of 4] "),
    ]
    assert capsys.readouterr().out == "b_msgs: the sourced ROS's own\n"
    monkeypatch.delenv("ROS_DISTRO")
    del built[:]
    build_messages.build_messages()
    assert [name.name for name, *_ in built] == ["rlinf_msgs", "a_msgs", "b_msgs", "c_msgs"]


def test_paths_of_the_build_machine_in_the_wheels_are_replaced_once(tmp_path):
    """The files are hard links of other environments, which stay as they are."""
    folder = tmp_path / "share/one/cmake"
    folder.mkdir(parents=True)
    export, other = folder / "oneExport.cmake", folder / "oneConfig.cmake"
    line = '  INTERFACE_INCLUDE_DIRECTORIES "{}"\n'
    export.write_text(line.format("/build/include/python3.12;/build/numpy") + line.format("/a"))
    other.write_text(line.format("/build/include/python3.12;/build/numpy"))
    (tmp_path / "link").hardlink_to(export)
    build_messages.repair_exports(tmp_path, "/here/python;/here/numpy")
    assert export.read_text() == line.format("/here/python;/here/numpy") + line.format("/a")
    assert "/build/" in other.read_text() and "/build/" in (tmp_path / "link").read_text()
    inode = export.stat().st_ino
    build_messages.repair_exports(tmp_path, "/here/python;/here/numpy")
    assert export.stat().st_ino == inode and len(list(folder.iterdir())) == 2


def test_a_percentage_never_goes_back_and_is_told_by_tenths(capsys):
    lines = ["[1/3] a\n", "[ 20%] b\n", "noise [9/9]\n", "[2/3] c\n", "[3/3] d\n"]
    assert list(progress(iter(lines), "compiling")) == lines
    assert capsys.readouterr().out == "  33 % compiled\n  66 % compiled\n  100 % compiled\n"


def test_a_silent_build_is_waited_for_without_computing():
    def slow():
        time.sleep(0.5)
        yield "[1/1] done\n"

    before = time.thread_time()
    assert list(progress(slow(), "compiling", silence_s=60.0)) == ["[1/1] done\n"]
    assert time.thread_time() - before < 0.05


def test_a_build_says_what_it_does_before_it_does_it(machine, monkeypatch):
    """Also through a pipe."""
    printed = []
    monkeypatch.setattr(
        build_messages,
        "print",
        lambda line, flush=False: printed.append((line.partition(" for ")[0], flush)),
        raising=False,
    )
    machine().build()
    assert printed[:5] == [
        ("[2 of 3] my_msgs: compiling", True),
        ("  looking", True),
        ("  50 % compiled", True),
        ("  generating and compiling", True),
        ("  50 % compiled", True),
    ]
    del printed[:]

    def slow():
        while len(printed) < 1:
            time.sleep(0.01)
        yield "done\n"

    list(progress(slow(), "generating", silence_s=0.02))
    assert printed[0][0].startswith("  still generating, ") and printed[0][1] is True


def test_a_shell_without_a_path_has_the_systems(machine, monkeypatch):
    here = machine()
    monkeypatch.delenv("PATH")
    assert build_messages._path() == f"{here.tools}:{os.defpath}"


@pytest.mark.parametrize(
    "variables, sourced", [({}, False), ({"ROS_DISTRO": "jazzy", "AMENT_PREFIX_PATH": ""}, False)]
)
def test_a_ros_that_is_not_sourced_has_no_messages(machine, monkeypatch, variables, sourced):
    here = machine()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert build_messages._has_ros("std_msgs", here.prefix) is sourced
