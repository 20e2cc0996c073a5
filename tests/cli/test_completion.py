"""``rlinf completion`` and ``rlinf --version``; examples of --help can be pasted."""

import shutil
import subprocess

import pytest

from rlinf_core.cli.examples import OVERVIEW
from rlinf_core.cli.main import run
from rlinf_core.core.paths import VERSION


def complete(script, *words):
    line = " ".join(f"'{word}'" for word in words)
    code = (
        f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _rlinf; echo "
        f"${{COMPREPLY[@]}}"
    )
    return subprocess.run(
        ["bash", "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()


def test_bash_completes_commands_below_commands_options_and_choices(capsys):
    run(["completion", "bash"])
    script = capsys.readouterr().out
    assert complete(script, "rlinf", "tele") == ["teleop"]
    assert complete(script, "rlinf", "data", "sp") == ["split"]
    assert complete(script, "rlinf", "data", "export", "rer") == ["rerun"]
    assert complete(script, "rlinf", "up", "demo", "--w") == ["--web"]
    assert complete(script, "rlinf", "completion", "") == ["bash", "zsh", "--help"]


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh on this machine")
def test_zsh_reads_the_script(capsys):
    run(["completion", "zsh"])
    subprocess.run(["zsh", "-f", "-c", capsys.readouterr().out], check=True)


def test_the_version_is_that_of_the_distribution(capsys):
    with pytest.raises(SystemExit, match="0"):
        run(["--version"])
    assert capsys.readouterr().out == f"rlinf {VERSION}\n"


def test_examples_of_the_help_are_commands_with_comments():
    for line in OVERVIEW.splitlines()[1:]:
        code, _, comment = line.partition(" # ")
        assert code.startswith("  rlinf ") and "  " not in code.strip(), line
        assert comment or not line.rstrip().endswith("#"), line
