"""``rlinf data push`` and ``pull``, ``rlinf policy push`` and ``pull``: the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.data import hub


def push_data(paths: list[Path], repository: str, public: bool, message: str) -> None:
    """Send recordings or a LeRobot data set."""
    _push(hub.dataset_upload(paths), repository, public, message)


def push_policy(path: Path, repository: str, public: bool, message: str) -> None:
    """Send a policy."""
    _push(hub.policy_upload(path), repository, public, message)


def pull_data(repository: str, out: Path, revision: str) -> None:
    """Download a data set."""
    hub.pull(hub.DATASET, repository, out, revision)
    lerobot = (out / "meta/info.json").is_file()
    print(f"{out}: {'rlinf data import lerobot' if lerobot else 'rlinf data list'} {out}")


def pull_policy(repository: str, out: Path, revision: str) -> None:
    """Download a policy."""
    hub.pull(hub.MODEL, repository, out, revision)
    print(f"{out}: rlinf eval {out}")


def _push(upload: hub.Upload, repository: str, public: bool, message: str) -> None:
    size = sum(path.stat().st_size for path in upload.files.values())
    print(f"{upload.summary}: {len(upload.files)} files, {size / 1e6:.1f} MB", flush=True)
    print(f"pushed to {hub.push(upload, repository, public, message)}")
