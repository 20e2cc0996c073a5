"""The journal of what has arrived, after what may happen to its file."""

import pytest

from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes.journal import Journal


def test_a_journal_with_half_a_line_goes_on_and_one_that_is_damaged_is_told(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.arrived("a", "s", "1")
    journal.taken("a", "online")
    journal.arrived("a", "s", "2")
    journal.close()
    content = path.read_bytes()
    path.write_bytes(content + b'{"id": "b", "stat')
    journal = Journal(path)
    assert journal.ids() == ["a"] and journal.content("a") == "1" and path.read_bytes() == content
    journal.arrived("b", "s", "3")
    journal.close()
    assert Journal(path).ids() == ["a", "b"] and path.read_bytes().startswith(content)
    path.write_bytes(content.replace(b'"id"', b"'id'", 1))
    with pytest.raises(EpisodeError, match="line 1: expected a JSON object"):
        Journal(path)


def test_a_disk_that_fills_up_leaves_no_half_line_in_the_journal(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.arrived("a", "s", "1")
    journal.taken("a", "online")
    file = journal._file

    class Full:
        """Takes half of it."""

        def __getattr__(self, name):
            return getattr(file, name)

        def write(self, data):
            return file.write(data[:10])

    journal._file = Full()
    with pytest.raises(OSError, match="the disk is full"):
        journal.arrived("b", "s", "2")
    journal._file = file
    assert journal.ids() == ["a"]
    journal.arrived("c", "s", "3")
    assert Journal(journal.path).ids() == ["a", "c"]


def test_a_disk_that_fails_altogether_is_told_as_it_failed_first(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.arrived("a", "s", "1")
    file = journal._file

    class Broken:
        def write(self, data):
            raise OSError("the first error")

        def truncate(self, size):
            raise OSError("the second error")

    journal._file = Broken()
    with pytest.raises(OSError, match="the first error"):
        journal.taken("a", "online")
    journal._file = file
    journal.close()
    assert Journal(journal.path).ids() == ["a"]
