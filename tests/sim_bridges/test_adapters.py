"""Manifests list what adapters use of packages that cannot run here, as in the real sources."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import adapters  # noqa: E402

sys.path.remove(str(ROOT / "scripts"))


def test_every_adapter_that_is_tried_against_a_stand_in_has_a_manifest():
    assert {*adapters.manifests()} == {
        "behavior",
        "gsenv",
        "isaaclab",
        "robocasa",
        "roboverse",
        "robotwin",
    }


@pytest.mark.parametrize("adapter", adapters.manifests())
def test_a_manifest_accounts_for_every_name_that_its_adapter_uses(adapter):
    sources = adapters.manifests()[adapter]
    text = "\n".join(
        line for source in sources for lines in source["uses"].values() for line in lines
    )
    assert sorted(name for name in adapters.names_used(adapter) if name not in text) == []


def test_what_is_installed_here_is_resolved():
    source = next(
        one for one in adapters.manifests()["robotwin"] if one["source"].startswith("sapien==")
    )
    if f"sapien=={importlib.metadata.version('sapien')}" != source["source"]:
        pytest.skip(f"another version of sapien than {source['source']} is installed")
    import sapien

    rows = adapters.resolve(source, Path(sapien.__file__).parent.parent)
    assert [row for row in rows if not row[2]] == []


def test_a_line_that_is_not_there_is_missing_and_one_of_no_source_unknown(tmp_path):
    (tmp_path / "a.py").write_text("first\nsecond\n")
    source = {"source": "x", "uses": {"a.py@0123abc": ["second", "third"], "b.py": ["first"]}}
    assert [row[2] for row in adapters.resolve(source, tmp_path)] == ["line 2", "", ""]
    assert {row[2] for row in adapters.resolve(source, None)} == {"?"}
