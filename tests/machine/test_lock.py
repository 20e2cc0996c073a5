"""The lock serves every Python that we say, names public registries alone, and keeps CUDA apart
from the CPU build.
"""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

import install  # noqa: E402

pytestmark = pytest.mark.timed

LOCK = (ROOT / "uv.lock").read_text()


def entry(name):
    return next(text for package, _, text in install.PACKAGE.findall(LOCK) if package == name)


def test_only_public_registries_are_named():
    assert set(re.findall(r'registry = "([^"]*)"', LOCK)) == {"https://pypi.org/simple"}
    assert {url.split("/")[2] for url in re.findall(r'url = "([^"]*)"', LOCK)} == {
        "files.pythonhosted.org"
    }


def test_the_other_locks_and_the_docs_name_no_path_of_a_machine():
    for path in [
        *ROOT.glob("locks/*"),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "README.md",
        ROOT / "pyproject.toml",
    ]:
        assert not re.search(
            r"file://|/opt/(?!ros)|/root/|--find-links|--index-url", path.read_text()
        ), path


@pytest.mark.parametrize("python", ["cp310", "cp311", "cp312", "cp313"])
def test_every_compiled_package_of_a_station_has_a_wheel_for(python):
    for name in (
        "numpy",
        "grpcio",
        "opencv-python-headless",
        "protobuf",
        "ros-rclpy",
        "torch",
        "ray",
        "mujoco",
    ):
        files = [
            file
            for package, _, text in install.PACKAGE.findall(LOCK)
            if package == name
            for file, _ in install.FILE.findall(text)
        ]
        assert any(f"-{python}-" in file or "abi3" in file for file in files), (name, python)


def test_what_the_cpu_build_leaves_out_is_what_torch_wants_of_cuda_and_nothing_else():
    wanted = re.findall(
        r'name = "([^"]+)"', entry("torch").partition("dependencies = [")[2].partition("]\n")[0]
    )
    cuda = {name for name in wanted if "nvidia" in name or "cuda" in name}
    assert cuda and all(install.CUDA_LIBRARY.match(name) for name in cuda)
    assert not [name for name in wanted if name not in cuda and install.CUDA_LIBRARY.match(name)]
    assert not install.CUDA_LIBRARY.match("nvidia-ml-py"), (
        "a few kB of Python that simulators import"
    )


def test_the_build_follows_the_machine_unless_one_is_named(monkeypatch):
    monkeypatch.setattr(install.Path, "exists", lambda self: True)
    assert not install.wants_cpu("auto") and install.wants_cpu("cpu")
    monkeypatch.setattr(install.Path, "exists", lambda self: False)
    assert install.wants_cpu("auto") and not install.wants_cpu("cuda")


def test_the_size_that_is_told_is_that_of_the_file_for_this_python(capsys, monkeypatch):
    monkeypatch.setattr(install, "PYTHON", "cp312")
    text = "".join(
        f'    {{ url = "https://x/{name}", hash = "sha256:0", size = {size} }},\n'
        for name, size in [
            ("a-1-cp311-cp311-linux.whl", 11),
            ("a-1-cp312-cp312-linux.whl", 1_200_000_000),
            ("a-1.tar.gz", 7),
        ]
    )
    assert install._size(text) == 1_200_000_000
    assert install._size(text.replace("cp312-cp312", "py3-none")) == 1_200_000_000
    install._print_missing([("a", "1")], {("a", "1"): text})
    assert capsys.readouterr().out == (
        "1 packages, 1,200 MB to download, 2.4 GB on disk; about 3 minutes at 100 Mbit/s\n"
    )


def test_a_build_that_nobody_knows_is_refused_before_anything_is_fetched(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["install.py"])
    monkeypatch.setenv("RLINF_TORCH", "gpu")
    with pytest.raises(SystemExit):
        install.main()
    assert "RLINF_TORCH: expected auto, cpu, cuda, got 'gpu'" in capsys.readouterr().err
