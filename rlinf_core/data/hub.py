"""Data sets and policies at the Hugging Face Hub, by ``huggingface_hub``.

``HF_ENDPOINT`` names another server.

A data set is a folder of recordings or a LeRobot data set. A policy is a policy file with its
recipe. A new repository is private. Each push is one commit. The token stays with
``huggingface_hub``: this module never reads or prints it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.extras import require
from rlinf_core.data.episodes import intact_episodes
from rlinf_core.data.folders import new_folder
from rlinf_core.episodes.checksums import SUMS, verify
from rlinf_core.policies.policy_folder import newest_policy

DATASET, MODEL = "dataset", "model"
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
TOKEN = re.compile(r"hf_[A-Za-z0-9]{8,}|(?i:bearer) +\S+")
# of a run, beside its policy
RUN_FILES = ("recipe.yaml", "report.json", "report.md", "learning_curve.png")


@dataclass(frozen=True)
class Upload:
    """The files of one push.

    Attributes:
        kind: DATASET or MODEL.
        files: local files, by path in the repository.
        card: text of the repository's README.md.
        tag: tag of the commit; empty for none.
        summary: text for a person.
    """

    kind: str
    files: dict[str, Path]
    card: str
    tag: str
    summary: str


def dataset_upload(paths: list[Path]) -> Upload:
    """Return the upload of recordings or of one LeRobot data set.

    Raises:
        EpisodeError: a recording is damaged, or there is none.
    """
    if len(paths) == 1 and (info := paths[0] / "meta/info.json").is_file():
        document = json.loads(info.read_text())
        files = {
            str(path.relative_to(paths[0])): path
            for path in sorted(paths[0].rglob("*"))
            if path.is_file()
        }
        version = str(document.get("codebase_version", ""))
        summary = f"{document.get('total_episodes', '?')} episodes (LeRobot {version})"
        return Upload(
            DATASET, files, _card("LeRobot", summary, "rlinf data import lerobot"), version, summary
        )
    files = {}
    episodes = 0
    successes = 0
    for folder, episode in intact_episodes(paths):
        episodes, successes = episodes + 1, successes + episode.success
        files |= {
            f"{folder.name}/{path.name}": path
            for path in sorted(folder.iterdir())
            if path.is_file()
        }
    summary = f"{episodes} episodes, {successes} succeeded"
    return Upload(DATASET, files, _card("rosbag2", summary, "rlinf data list"), "", summary)


def policy_upload(path: Path) -> Upload:
    """Return the upload of a policy file, of a run's newest policy, or of a LeRobot policy folder.

    Raises:
        PolicyFileError: there is none.
    """
    if (path / "config.json").is_file() and (path / "model.safetensors").is_file():
        files = {item.name: item for item in sorted(path.iterdir()) if item.is_file()}
        return Upload(
            MODEL,
            files,
            _card("LeRobot", path.name, "LeRobot"),
            "",
            f"the {len(files)} files of {path}",
        )
    newest = newest_policy(path)
    run = next(
        (parent for parent in newest.resolve().parents if (parent / "recipe.yaml").is_file()), None
    )
    run_files = {name: run / name for name in RUN_FILES if (run / name).is_file()} if run else {}
    return Upload(
        MODEL,
        {newest.name: newest} | run_files,
        _card("safetensors", newest.name, "rlinf eval"),
        "",
        newest.name,
    )


def push(upload: Upload, repository: str, public: bool = False, message: str = "") -> str:
    """Send an upload as one commit.

    Args:
        upload: the files.
        repository: OWNER/NAME, created if it is not there.
        public: a new repository is public.
        message: of the commit.

    Returns:
        The address of the repository.

    Raises:
        RlinfError: the server cannot be reached, or refuses; the message names the remedy.
    """
    _check_repository(repository)
    with _hub() as api:
        from huggingface_hub import CommitOperationAdd
        from huggingface_hub.errors import RevisionNotFoundError

        created = api.create_repo(
            repository, repo_type=upload.kind, private=not public, exist_ok=True
        )
        files = [CommitOperationAdd(name, str(path)) for name, path in upload.files.items()]
        if "README.md" not in upload.files:
            files.append(CommitOperationAdd("README.md", upload.card.encode()))
        commit = api.create_commit(
            repository,
            files,
            commit_message=message or f"rlinf: {upload.summary}",
            repo_type=upload.kind,
        )
        if upload.tag:  # LeRobot finds the layout by this tag
            with suppress(RevisionNotFoundError):
                api.delete_tag(repository, tag=upload.tag, repo_type=upload.kind)
            api.create_tag(repository, tag=upload.tag, revision=commit.oid, repo_type=upload.kind)
    return str(created)


def pull(kind: str, repository: str, out: Path, revision: str = "") -> Path:
    """Download a repository to a new folder, which appears complete or not at all.

    Args:
        kind: DATASET or MODEL.
        repository: OWNER/NAME.
        out: a new folder.
        revision: a branch, tag or commit; empty for the newest commit of main.

    Raises:
        RlinfError: the server cannot be reached, or refuses, or a recording does not match its
            seal.
    """
    _check_repository(repository)
    with new_folder(out) as folder:
        with _hub() as api:
            api.snapshot_download(
                repository, repo_type=kind, revision=revision or None, local_dir=str(folder)
            )
        # the library's own record of the download
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        for sums in sorted(folder.rglob(SUMS)):
            verify(sums.parent)
    return out


def _check_repository(repository: str) -> None:
    if not REPOSITORY.fullmatch(repository):
        raise RlinfError(
            f"repository: expected OWNER/NAME of letters, digits, '.', '_' and '-', got "
            f"'{repository}'",
            code="RL-E110",
        )


def _card(layout: str, summary: str, command: str) -> str:
    return (
        "---\n"
        f"tags: [robotics, rlinf{', LeRobot' * (layout == 'LeRobot')}]\n"
        "---\n"
        "\n"
        f"{summary}. Layout: {layout}. Use: `{command}`\n"
    )


@contextmanager
def _hub() -> Iterator[Any]:
    """Yield the client. Its errors become errors with a remedy, and without a token."""
    require("hub", "the Hugging Face Hub")
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        LocalTokenNotFoundError,
    )

    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT
    try:
        yield HfApi(endpoint=endpoint, library_name="rlinf")
    except Exception as error:
        if isinstance(error, HFValidationError):  # such as a name with '--'
            raise RlinfError(f"repository: {error}", code="RL-E110") from None
        answers = [cause for cause in _causes(error) if isinstance(cause, HfHubHTTPError)]
        if isinstance(error, LocalTokenNotFoundError):
            raise RlinfError(_access_text(endpoint)) from error
        if answers:
            # the text of the first error may contain the sent token
            raise RlinfError(_refusal_text(answers[0], endpoint)) from None
        library = type(error).__module__.partition(".")[0]
        if library.startswith("http") or isinstance(
            error, LocalEntryNotFoundError | ConnectionError | TimeoutError
        ):
            raise RlinfError(_unreachable_text(endpoint, error)) from None
        raise


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _refusal_text(error: Any, endpoint: str) -> str:
    status = getattr(error.response, "status_code", 0)
    if status in (401, 403):
        return _access_text(endpoint)
    if status == 404:
        return (
            f"expected a repository or revision that you can see at {endpoint}, got none of that "
            "name (404). Check the name. A private one also needs a token: run `hf auth login`, "
            "or set HF_TOKEN"
        )
    return (
        f"expected an answer of {endpoint}, got {status}: "
        f"{without_token(str(error).splitlines()[0])}. Try again later"
    )


def _access_text(endpoint: str) -> str:
    return (
        f"expected a token that {endpoint} accepts for this repository, got none or one without "
        "this permission. Create one with write access at <endpoint>/settings/tokens, then run "
        "`hf auth login`, or set HF_TOKEN"
    )


def _unreachable_text(endpoint: str, error: Exception) -> str:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return (
            "HF_HUB_OFFLINE is set, so nothing was sent or read. Unset it, and run the command "
            "again"
        )
    return (
        f"cannot reach {endpoint}: {without_token(type(error).__name__)}. Nothing was changed "
        "here. Connect this machine, or name a mirror or your own server in HF_ENDPOINT, and run "
        "the command again. Without a network, copy the folder by hand: its recordings keep their "
        "seals"
    )


def without_token(text: str) -> str:
    """Return the text with everything that looks like a token removed."""
    return TOKEN.sub("<token>", text)
