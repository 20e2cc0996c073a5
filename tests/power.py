"""Simulated power cuts: the possible contents of a disk after every step of a test.

A disk surely keeps the content of a file at its last flush, and the names in a folder at its last
flush. After each call that changes names or flushes, two possible disks are recorded. One keeps
nothing else. The other keeps every change of names at once, but only half of unflushed data. A
journaling disk is between the two.
"""

import os
from pathlib import Path

CALLS = ("rename", "replace", "mkdir", "unlink", "remove", "rmdir")


class Disk:
    """Watches ``root`` from now on; its present content counts as flushed.

    Attributes:
        cuts: (acknowledged files, {path: bytes}) after every step; a folder has None for bytes.
    """

    def __init__(self, root, monkeypatch):
        self.root, self.acknowledged, self.cuts = Path(root), [], []
        self._data, self._names, self._held = {}, {}, []
        for path in (self.root, *self.root.rglob("*")):
            self._flush(os.open(path, os.O_RDONLY))
        fsync = os.fsync
        monkeypatch.setattr(
            os,
            "fsync",
            lambda handle: (fsync(handle), self._flush(os.dup(handle)), self._note())[0],
        )
        for name in CALLS:
            monkeypatch.setattr(os, name, self._noted(getattr(os, name)))

    def acknowledge(self, what):
        """Note that a file must survive a power cut from now on."""
        self.acknowledged.append(what)
        self._note()

    def _noted(self, call):
        def noted(*arguments, **options):
            result = call(*arguments, **options)
            self._note()
            return result

        return noted

    def _flush(self, handle):
        self._held.append(handle)  # an open file keeps its inode number from reuse
        number = os.fstat(handle).st_ino
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            with os.scandir(handle) as entries:
                self._names[number] = {
                    entry.name: (entry.inode(), entry.is_dir()) for entry in entries
                }
        else:
            self._data[number] = Path(f"/proc/self/fd/{handle}").read_bytes()

    def _note(self):
        done = tuple(self.acknowledged)
        least = dict(self._stored(self.root.stat().st_ino, Path()))
        most = {
            path.relative_to(self.root): None if path.is_dir() else self._half(path)
            for path in self.root.rglob("*")
        }
        self.cuts += [(done, least), (done, most)]

    def _stored(self, folder, where):
        for name, (number, is_dir) in self._names.get(folder, {}).items():
            yield where / name, None if is_dir else self._data.get(number, b"")
            if is_dir:
                yield from self._stored(number, where / name)

    def _half(self, path):
        content, now = self._data.get(path.stat().st_ino), path.read_bytes()
        return content if content is not None else now[: len(now) // 2]


def restore(tree, folder):
    """Write a noted disk into ``folder``."""
    folder.mkdir()
    for path, data in sorted(tree.items()):
        if data is None:
            (folder / path).mkdir(parents=True)
        else:
            (folder / path).write_bytes(data)
    return folder
