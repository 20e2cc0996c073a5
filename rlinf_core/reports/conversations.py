"""Recorded conversations in words: messages, calls of tools, tokens, rewards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rlinf_core.agentic.conversation import FOLDER, POLICY, PROMPT, TOOL
from rlinf_core.core.errors import RlinfError

Record = Mapping[str, Any]


def conversation_files(path: Path) -> list[Path]:
    """Return the conversation files of a path (a file or a run's folder), oldest first.

    It is empty without any.
    """
    if path.is_file():
        return [path] if path.suffix == ".jsonl" and path.parent.name == FOLDER else []
    folder = path if path.name == FOLDER else path / FOLDER
    return sorted(folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)


def read_conversations(path: Path) -> list[dict[str, Any]]:
    """Read the records of a file. Raises RlinfError that names an invalid line."""
    records = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
            describe_conversation(record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RlinfError(
                f"{path}, line {number}: expected a conversation of rlinf train, got {error!r}. "
                "Was the disk full?"
            ) from error
        records.append(record)
    return records


def describe_conversation(record: Record) -> list[str]:
    """Describe a conversation: a headline, and a line for each message."""
    kinds = [kind for row in record["rows"] for kind in row["kinds"]]
    versions = [version for row in record["rows"] for version in row["versions"] if version >= 0]
    drawn = [
        value
        for row in record["rows"]
        for value, kind in zip(row["log_probs"], row["kinds"], strict=True)
        if kind == POLICY
    ]
    end = "ended" if record["finished"] else "not finished"
    if record["truncated"]:
        end = "truncated"
    lines = [
        f"scene {record['scene']}: reward {record['reward']:g}, {end}; tokens: "
        f"{kinds.count(PROMPT)} of prompts, {kinds.count(POLICY)} of the policy, "
        f"{kinds.count(TOOL)} of tools, in {len(record['rows'])} rows"
        + (
            f"; weights of update {min(versions)} to {max(versions)}, mean log-probability "
            f"{fmean(drawn):.2f}"
            if versions
            else ""
        )
    ]
    lines += [f"  {name} {value:g}" for name, value in record["metrics"].items()]
    for message in record["messages"]:
        lines += _message(message)
    return lines


def _message(message: Mapping[str, Any]) -> list[str]:
    author = (
        message["agent"]
        if message["role"] == "assistant"
        else f"{message['role']} to {message['agent']}"
    )
    calls = [
        f"  {author} calls {call['function']['name']}({call['function']['arguments']})"
        for call in message.get("tool_calls") or []
    ]
    content = message.get("content") or ""
    return ([f"  {author}: {content}"] if content or not calls else []) + calls


def summary(records: Sequence[Record]) -> str:
    """Summarise conversations in one line."""
    solved = sum(record["reward"] >= 1.0 for record in records)
    cut = sum(record["truncated"] for record in records)
    return f"{len(records)} conversations: {solved} with a reward of 1 or more, {cut} truncated"
