"""Every block of a page can be used as it stands: commands parse, overrides are keys of recipes,
YAML and Python parse.

A block of shell is fenced as ``bash`` or indented; ``text`` marks output, ``mermaid`` a diagram.
Not run here: programs of others (``OTHERS``), and what a command does once its arguments are read.
"""

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml

from rlinf_core.cli.parsers import make_parser
from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.loader import recipe_names

ROOT = Path(__file__).resolve().parent.parent
GENERATED = {"cli", "errors", "messages"}  # the parsers, the codes and the definitions themselves
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/results/README.md",
    *sorted((ROOT / "ros_ws/src").glob("*/README.md")),
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.parent.name != "reference" or page.stem not in GENERATED
    ),
]
OTHERS = {
    ".",
    "apt-get",
    "cat",
    "cd",
    "colcon",
    "cp",
    "curl",
    "docker",
    "export",
    "git",
    "grep",
    "journalctl",
    "ls",
    "mkdir",
    "openssl",
    "pip",
    "printf",
    "python",
    "python3",
    "ros2",
    "rosdep",
    "scp",
    "sed",
    "source",
    "ssh",
    "sudo",
    "uv",
    "uvx",
    "vcs",
}
REFUSED = {  # pages show the error of these
    "rlinf demo demo_tiny --set online.max_minute=1": "did you mean 'max_minutes'"
}
START = r"\s*(?:\$ )?(?:sudo )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?"
END = r"\s+#(?:\s|$)|\s[|&>]+\s?|;|&&|\s2>"


def blocks(page):
    """Language and text of each block; ``inline`` for a command within a sentence."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.S)
    fences = r"^ *```([\w-]*)[^\n]*\n(.*?)^ *```"
    yield from re.findall(fences, text, re.S | re.M)
    text = re.sub(fences, "", text, flags=re.S | re.M)
    for block in re.findall(r"(?:^\n|\A)((?: {4}.*\n|\n(?= {4}))+)", text, re.M):
        yield "indented", block
    for command in re.findall(r"`(rlinf [^`\n]+)`", text):
        yield "inline", command


def lines(block):
    """Yield the commands of a block, without their comments and what takes their output."""
    # what a file is to hold
    block = re.sub(r"<<\s*'?(\w+)'?\n.*?^\s*\1$", "", block, flags=re.S | re.M)
    for line in re.sub(r"\\\n\s*", " ", block).splitlines():
        command = re.split(END, line)[0].strip()
        if command and not command.startswith("#"):
            yield command


PARSER = make_parser()


def parser_of(words):
    """Return the parser of a command, and the words that follow its name."""
    parser, words = PARSER, list(words)
    while words and not words[0].startswith("-"):
        below = next(
            (
                action
                for action in parser._actions
                if hasattr(action, "choices") and isinstance(action.choices, dict)
            ),
            None,
        )
        if below is None:
            break
        assert words[0] in below.choices, f"no command {words[0]!r}"
        parser = below.choices[words.pop(0)]
    return parser, words


COMMANDS = sorted(
    {
        (language == "inline", command)
        for page in PAGES
        for language, block in blocks(page)
        if language in ("inline", "bash", "indented")
        for line in lines(block)
        for command in re.findall(rf"^{START}(rlinf [a-z-].*)", line)
    }
)


@pytest.mark.parametrize("inline, command", COMMANDS, ids=[command for _, command in COMMANDS])
def test_commands_of_pages_parse(inline, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    for word in words:  # a run's folder is there once the run was
        if "/" in word and "=" not in word and not word.startswith(("/", "~", "-")):
            Path(word).parent.mkdir(parents=True, exist_ok=True)
    if inline or words[0].startswith("-"):
        parser, rest = parser_of(words)
        options = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert options <= parser._option_string_actions.keys(), command
        return
    try:
        arguments = vars(PARSER.parse_args(words))
    except SystemExit as end:
        assert end.code == 0, f"{command}: {capsys.readouterr().err}"
        return
    overrides = [item for item in arguments.get("overrides", []) if "=" in item]
    if arguments.get("name") in recipe_names() and not command.startswith("rlinf sweep"):
        if command in REFUSED:
            with pytest.raises(RecipeError, match=REFUSED[command]):
                load_recipe(arguments["name"], overrides)
        else:
            load_recipe(arguments["name"], overrides)


def test_commands_are_found():
    assert len(COMMANDS) > 250 and (False, "rlinf doctor") in COMMANDS
    assert any(inline for inline, _ in COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_pages_are_shell_settings_or_python(page):
    for language, block in blocks(page):
        if language == "yaml":
            list(yaml.safe_load_all(block))
        elif language == "python":
            ast.parse(re.sub(r"^ *\.\.\.$", "    ...", block, flags=re.M))
        elif language == "bash":
            for line in lines(block):
                check_line(line)
        elif language == "indented":
            for line in lines(block):
                if re.match(rf"{START}(?:rlinf|python|make|scripts/)", line):
                    check_line(line)
        else:
            # tests/test_api.py runs pycon
            assert language in {"inline", "text", "mermaid", "json", "xml", "ini", "pycon"}, (
                page,
                block[:80],
            )


def check_line(line):
    """A line of shell begins with a command of this repository that exists, or with a program of
    others.
    """
    words = shlex.split(re.sub(rf"^{START}", "", line) or "cd")
    name = Path(words[0]).name or words[0]
    if name == "rlinf":
        return
    if name == "make":
        for target in (word for word in words[1:] if "=" not in word and not word.startswith("-")):
            assert re.search(
                rf"^{target}\b.*:|ISOLATED := .*\b{target}\b", (ROOT / "Makefile").read_text(), re.M
            ), line
        return
    script = next((word for word in words[:3] if re.match(r"(scripts|benchmarks)/", word)), "")
    if script:
        source = (ROOT / script).read_text()
        for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", line):
            if not script.endswith(("run_tests.sh", "test_all.sh")):
                assert option in source or "add_arguments" in source, (
                    f"{line}: {script} has no {option}"
                )
        return
    assert name in OTHERS, line
