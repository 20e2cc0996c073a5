"""The trainer's journal of episodes: which have arrived, from whom, with which content (SQLite)."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS episodes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    episode_id TEXT UNIQUE NOT NULL, station TEXT NOT NULL, sha256 TEXT NOT NULL, received REAL NOT NULL
)"""


class Journal:
    """Rows appear only after the episode's folder is durable in the inbox; they are never changed."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(_SCHEMA)
        self._database.commit()

    def content(self, episode_id: str) -> str | None:
        """The SHA-256 an episode arrived with, or None if it never did."""
        with self._lock:
            row = self._database.execute("SELECT sha256 FROM episodes WHERE episode_id = ?", (episode_id,)).fetchone()
        return row[0] if row else None

    def add(self, episode_id: str, station: str, sha256: str) -> None:
        """Record an arrival; a second time is no error and changes nothing."""
        with self._lock, self._database:
            self._database.execute("INSERT OR IGNORE INTO episodes (episode_id, station, sha256, received) "
                                   "VALUES (?, ?, ?, ?)", (episode_id, station, sha256, time.time()))

    def ids(self) -> list[str]:
        """Every episode that arrived, in order of arrival."""
        with self._lock:
            return [row[0] for row in self._database.execute("SELECT episode_id FROM episodes ORDER BY number")]
