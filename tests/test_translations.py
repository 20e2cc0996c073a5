"""The Chinese pages have the headings, commands, code words, numbers and tables of the English
ones, section by section.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAIRS = {
    "README.md": "README.zh.md",
    "docs/start/first_run.md": "docs/zh/first_run.md",
    "docs/safety.md": "docs/zh/safety.md",
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$|^((?: {4}\S[^\n]*\n)+)", re.S | re.M)


def commands(language, text):
    """Return the lines of a block without comments; of a diagram, its edges without labels."""
    cut = r":.*" if language == "mermaid" else r"\s+#.*"
    return [re.sub(cut, "", line).rstrip() for line in text.splitlines()]


def sections(page):
    """Return for each heading its level, code blocks, inline code, numbers and rows of tables."""
    text = page.read_text()
    parts = []
    blocks = [
        (*match.span(), commands(match[1], match[2] or match[3])) for match in BLOCK.finditer(text)
    ]
    prose = BLOCK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    places = [match.start() for match in re.finditer(r"^#+ ", prose, re.M)]
    for start, end in zip(places, [*places[1:], len(text)], strict=True):
        part = prose[start:end]
        words = re.sub(r"`[^`]+`|\]\([^)]*\)|https?://\S+", " ", part)
        parts.append(
            {
                "level": len(part) - len(part.lstrip("#")),
                "commands": [block for begin, _, block in blocks if start <= begin < end],
                "code": Counter(re.findall(r"`([^`]+)`", part)),
                "numbers": Counter(re.findall(r"(?<![A-Za-z\d.])\d+(?:\.\d+)*", words)),
                "states": Counter(
                    re.findall(r"\b(?:DISARMED|ARMED|ACTIVE|HOLD|FAULT|UNKNOWN|STOP)\b", words)
                ),
                "rows": len(re.findall(r"^\|", part, re.M)),
                "items": len(re.findall(r"^(?:\*|\d+\.) ", part, re.M)),
            }
        )
    return parts


@pytest.mark.parametrize("english", PAIRS)
def test_a_translation_has_what_its_original_has(english):
    original, translated = sections(ROOT / english), sections(ROOT / PAIRS[english])
    assert [part["level"] for part in original] == [part["level"] for part in translated], (
        "the headings' levels"
    )
    titles = re.findall(r"^#+ .*$", BLOCK.sub("", (ROOT / english).read_text()), re.M)
    for title, ours, theirs in zip(titles, original, translated, strict=True):
        for kind, value in ours.items():
            if isinstance(value, Counter):
                missing, more = value - theirs[kind], theirs[kind] - value
                assert not missing and not more, (
                    f"{english}, '{title}', {kind}: {PAIRS[english]} lacks {dict(missing)} and "
                    f"has {dict(more)} in addition. Change the translation as the original"
                )
            assert value == theirs[kind], (
                f"{english}, '{title}': {kind}; change {PAIRS[english]} as the original"
            )


@pytest.mark.parametrize("english", PAIRS)
def test_a_page_and_its_translation_name_each_other(english):
    for page, other in (
        (ROOT / english, ROOT / PAIRS[english]),
        (ROOT / PAIRS[english], ROOT / english),
    ):
        links = [
            (page.parent / link).resolve()
            for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        ]
        assert other in links, f"{page} expected a link to {other}"


def test_a_change_of_a_number_a_command_or_a_row_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    text = (
        "# A\n\nAfter 60 s `q` is a STOP.\n\n```bash\nrlinf demo   # a\n```\n\n    rlinf "
        "up\n\n| a |\n|---|\n\n* one\n"
    )
    page.write_text(text)
    (before,) = sections(page)
    assert before["commands"] == [["rlinf demo"], ["    rlinf up"]] and before["numbers"] == {
        "60": 1
    }
    for old, new, kind in (
        ("60", "6", "numbers"),
        ("`q`", "`e`", "code"),
        ("demo", "dem", "commands"),
        ("STOP", "", "states"),
        ("| a |\n", "", "rows"),
        ("* one", "one", "items"),
        ("    rlinf up", "    rlinf u", "commands"),
    ):
        page.write_text(text.replace(old, new))
        assert [name for name, value in sections(page)[0].items() if value != before[name]] == [
            kind
        ]
