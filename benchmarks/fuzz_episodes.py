"""Send damaged and hostile episodes through spool, client, bridge, inbox and replay.

    python benchmarks/fuzz_episodes.py --episodes 10000 --json benchmarks/results/fuzz_episodes.json

Each episode is a new recording (one of four shapes, one with an image) that is spoiled in one way at
one place: its messages before it is closed, its files before they are sealed, its files in the
spool, its parts in the upload, or its files in the inbox. Then it passes the real path. These are
errors:

* an exception that a person would see, or that would have ended the trainer
* a silent change: an episode that was sealed intact, spoiled after that, and accepted with other
  content
* an episode that was spoiled before the seal, and accepted although it is not valid: finite, of the
  right shapes, within bounds

The benchmark does not cover a disk that gives other data at each read, or two spoiled places in one
episode.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.figures import write  # noqa: E402
from rlinf_core.deploy.bridge.client import (  # noqa: E402
    BridgeClient,
    Sender,  # noqa: E402
    episode_offer,
    parts,
)
from rlinf_core.episodes import Episode, read_episode  # noqa: E402
from rlinf_core.episodes.checksums import SUMS, seal  # noqa: E402
from rlinf_core.episodes.messages import typestore  # noqa: E402
from rlinf_core.episodes.spool import Spool  # noqa: E402
from rlinf_core.policies import make_policy  # noqa: E402
from rlinf_core.recipes import load_recipe  # noqa: E402
from rlinf_core.tasks.task import load_task  # noqa: E402
from rlinf_core.trainer.data import make_data  # noqa: E402
from rlinf_core.trainer.governor import make_governor  # noqa: E402
from rlinf_core.trainer.sources.recordings import Intake  # noqa: E402
from rlinf_core.trainer.sources.stations import Stations  # noqa: E402
from tests.messages import raw_messages, write_raw  # noqa: E402

Random = random.Random
MessageList = list[tuple[str, str, int, bytes]]
NUMBERS = (float("nan"), float("inf"), -float("inf"), 1e300, -1e30, 0.0)
YAMLS = (
    b"",
    b"\xff\xfe",
    b"a: &a [x]\n" + b"b: &b [*a, *a]\n" * 50,
    b"!!python/object/apply:os.system ['false']",
    b"rosbag2_bagfile_information: {version: 9, relative_file_paths: [../../etc/passwd], "
    b"storage_identifier: sqlite3}",
    b"rosbag2_bagfile_information: {version: 99}",
    b"[" * 5000,
    b"rosbag2_bagfile_information: null",
)


# Messages before they are written
def flip_message(r: Random, messages: MessageList) -> MessageList:
    at = r.randrange(len(messages))
    topic, kind, ns, raw = messages[at]
    return [*messages[:at], (topic, kind, ns, flipped(r, raw)), *messages[at + 1 :]]


def cut_message(r: Random, messages: MessageList) -> MessageList:
    at = r.randrange(len(messages))
    topic, kind, ns, raw = messages[at]
    return [*messages[:at], (topic, kind, ns, raw[: r.randrange(len(raw))]), *messages[at + 1 :]]


def huge_length(r: Random, messages: MessageList) -> MessageList:
    at = r.randrange(len(messages))
    topic, kind, ns, raw = messages[at]
    where = 4 * r.randrange(1, len(raw) // 4)
    huge = r.choice([0xFFFFFFFF, 0x7FFFFFFF, 1 << 28, 100_000]).to_bytes(4, "little")
    return [
        *messages[:at],
        (topic, kind, ns, raw[:where] + huge + raw[where + 4 :]),
        *messages[at + 1 :],
    ]


def drop_message(r: Random, messages: MessageList) -> MessageList:
    dropped = r.sample(range(len(messages)), 2)
    return [message for number, message in enumerate(messages) if number not in dropped]


def repeat_message(r: Random, messages: MessageList) -> MessageList:
    return messages + r.choices(messages, k=2)


def shuffle_messages(r: Random, messages: MessageList) -> MessageList:
    return r.sample(messages, len(messages))


def no_applied(r: Random, messages: MessageList) -> MessageList:
    return [message for message in messages if not message[0].endswith("applied")]


def wrong_topic(r: Random, messages: MessageList) -> MessageList:
    one = r.choice(["timestep", "applied", "episode"])
    other = r.choice(["timestep", "applied", "episode", "x/timestep"])
    return [(topic.replace(one, other), *rest) for topic, *rest in messages]


def wrong_type(r: Random, messages: MessageList) -> MessageList:
    one = r.choice(["TimeStep", "Applied", "EpisodeEvent"])
    other = r.choice(["NamedVector", "Applied", "SafetyState"])
    return [(topic, kind.replace(one, other), *rest) for topic, kind, *rest in messages]


def wrong_value(r: Random, messages: MessageList) -> MessageList:
    """Change a number, a size or a text of one message."""
    at = r.randrange(len(messages))
    topic, kind, ns, raw = messages[at]
    message = typestore().deserialize_cdr(raw, kind)
    names = [
        name for name in vars(message) if name not in ("header", "observation_stamp", "__msgtype__")
    ]
    spoil(r, message, r.choice(names))
    return [
        *messages[:at],
        (topic, kind, ns, bytes(typestore().serialize_cdr(message, kind))),
        *messages[at + 1 :],
    ]


def spoil(r: Random, message: Any, name: str) -> None:
    value = getattr(message, name)
    if name in ("vectors", "images") and value:
        one = r.choice(value)
        what = r.choice(["data", "name" if name == "vectors" else "encoding", "less"])
        if what == "less":
            value.remove(one)
        else:
            spoil(r, one, what)
    elif isinstance(value, np.ndarray):
        other = np.resize(value, r.choice([0, 1, 2, value.size, value.size, value.size + 1]))
        if other.size and other.dtype != np.uint8:
            with np.errstate(over="ignore"):
                other[r.randrange(other.size)] = np.float64(r.choice(NUMBERS)).astype(other.dtype)
        setattr(message, name, other)
    elif isinstance(value, float):  # float32 in the messages
        setattr(
            message,
            name,
            max(-3e38, min(3e38, r.choice(NUMBERS[3:])))
            if r.random() < 0.5
            else r.choice(NUMBERS[:3]),
        )
    elif isinstance(value, str):
        setattr(message, name, r.choice(["", "x" * 100_000, "../../x", "\0"]))
    elif isinstance(value, list):
        setattr(message, name, ["x"] * r.choice([0, 1, 1000]) if name == "limits" else [])
    else:
        setattr(message, name, type(value)(r.choice([0, 1, 2, 127])))


# Files
def flip_file(r: Random, folder: Path, other: Path) -> None:
    file = r.choice(sorted(folder.iterdir()))
    file.write_bytes(flipped(r, file.read_bytes()))


def flip_some(r: Random, folder: Path, other: Path) -> None:
    for _ in range(r.randrange(2, 20)):
        flip_file(r, folder, other)


def cut_file(r: Random, folder: Path, other: Path) -> None:
    file = r.choice(sorted(folder.iterdir()))
    file.write_bytes(file.read_bytes()[: r.randrange(file.stat().st_size)])


def empty_file(r: Random, folder: Path, other: Path) -> None:
    r.choice(sorted(folder.iterdir())).write_bytes(b"")


def longer_file(r: Random, folder: Path, other: Path) -> None:
    file = r.choice(sorted(folder.iterdir()))
    file.write_bytes(file.read_bytes() + r.randbytes(r.randrange(1, 100)))


def lose_file(r: Random, folder: Path, other: Path) -> None:
    r.choice(sorted(folder.iterdir())).unlink()


def more_files(r: Random, folder: Path, other: Path) -> None:
    for _ in range(r.choice([1, 30])):
        (folder / f"more-{r.randrange(1 << 30)}").write_bytes(b"")


def sub_folder(r: Random, folder: Path, other: Path) -> None:
    (folder / "sub").mkdir()


def link(r: Random, folder: Path, other: Path) -> None:
    file = r.choice(sorted(folder.iterdir()))
    file.unlink()
    file.symlink_to(r.choice(["/etc/passwd", "/dev/zero", "nowhere"]))


def swap_file(r: Random, folder: Path, other: Path) -> None:
    """Replace a file by one of another episode."""
    file = r.choice(sorted(folder.iterdir()))
    shutil.copyfile(other / file.name.replace(folder.name, other.name), file)


def swap_episode(r: Random, folder: Path, other: Path) -> None:
    """Replace all files by those of another episode, under this episode's name."""
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


def swap_records(r: Random, folder: Path, other: Path) -> None:
    """Exchange two pieces of a file."""
    file = folder / f"{folder.name}.mcap"
    data, size = bytearray(file.read_bytes()), r.randrange(8, 400)
    one, two = sorted(r.sample(range(0, len(data) - size, 4), 2))
    data[one : one + size], data[two : two + size] = data[two : two + size], data[one : one + size]
    file.write_bytes(data)


def huge_in_file(r: Random, folder: Path, other: Path) -> None:
    file = folder / f"{folder.name}.mcap"
    data, at = bytearray(file.read_bytes()), r.randrange(8, file.stat().st_size - 8)
    data[at : at + 8] = r.choice(
        [b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 8, (1 << 40).to_bytes(8, "little")]
    )
    file.write_bytes(data)


def hostile_yaml(r: Random, folder: Path, other: Path) -> None:
    (folder / "metadata.yaml").write_bytes(r.choice(YAMLS))


def flipped(r: Random, data: bytes) -> bytes:
    if not data:
        return b"\0"
    spoiled = bytearray(data)
    spoiled[r.randrange(len(spoiled))] ^= 1 << r.randrange(8)
    return bytes(spoiled)


# Parts on the way
def spoil_parts(r: Random, parts: list[Any]) -> list[Any]:
    spoil_episode = r.choice(
        ["flip", "cut", "drop", "repeat", "shuffle", "end", "place", "rename", "hash", "id", "size"]
    )
    # the first has no chunk
    at = r.randrange(1 if spoil_episode in ("flip", "cut", "place") else 0, len(parts))
    episode, file = parts[0].episode, r.randrange(len(parts[0].episode.files))
    if spoil_episode in ("flip", "cut"):
        chunk = parts[at].chunk
        chunk.data = flipped(r, chunk.data) if spoil_episode == "flip" else chunk.data[:-1]
        # damaged on the way, or by a peer's own fault
        chunk.crc32 = r.choice([chunk.crc32, zlib.crc32(chunk.data)])
    elif spoil_episode == "place":
        parts[at].chunk.file = r.choice([0, 1, 99])
        parts[at].chunk.offset = r.choice([0, 1, 1 << 40])
    elif spoil_episode == "rename":
        episode.files[file].name = r.choice(["../x", "x", "", SUMS, "." * 300])
    elif spoil_episode == "hash":
        episode.files[file].sha256 = r.choice(["", "0" * 64, "x" * 100_000])
    elif spoil_episode == "id":
        episode.id = r.choice(["", "../x", ".part-x", "other"])
    elif spoil_episode == "size":
        episode.files[file].size = r.choice([0, 1, 1 << 62])
    return {
        "drop": parts[:at] + parts[at + 1 :],
        "repeat": [*parts, parts[at]],
        "shuffle": r.sample(parts, len(parts)),
        "end": parts[:at],
    }.get(spoil_episode, parts)


BEFORE: tuple[Callable, ...] = (
    flip_message,
    flip_message,
    flip_message,
    cut_message,
    huge_length,
    huge_length,
    drop_message,
    repeat_message,
    shuffle_messages,
    no_applied,
    wrong_topic,
    wrong_type,
    wrong_value,
    wrong_value,
    wrong_value,
)
FILES: tuple[Callable, ...] = (
    flip_file,
    flip_file,
    flip_file,
    flip_file,
    flip_some,
    cut_file,
    empty_file,
    longer_file,
    lose_file,
    more_files,
    sub_folder,
    link,
    swap_file,
    swap_episode,
    swap_records,
    huge_in_file,
    hostile_yaml,
)
PLACES = ("messages", "unsealed", "spool", "way", "inbox")


class RecordingIntake(Intake):
    """An intake that records what it took."""

    taken: Episode | None = None

    def read(self, folder: Path) -> Episode:
        self.taken = super().read(folder)
        return self.taken


class Pipeline:
    """One station and one trainer for episodes of one spec."""

    def __init__(self, root: Path, spec: Any, recording: dict[str, Any]) -> None:
        self.root, self.spec, self.recording = root, spec, recording
        recipe = load_recipe("demo", ["replay.capacity=500"])
        data = make_data(recipe, make_policy(spec, recipe.policy), make_governor(recipe, 10))
        self.intake = RecordingIntake(root / "run", spec, data.max_transitions)
        self.stations = Stations(
            "127.0.0.1:0", root / "run", self.intake, lambda taken: data.insert(taken, 4)
        )
        self.server = self.stations.server
        self.spool = Spool(root / "spool", min_free_mb=1.0)
        self.client = BridgeClient(f"127.0.0.1:{self.server.port}", "a")
        self.sender = Sender(self.spool, self.client, lambda line: None)
        self.other = write_raw(self.spool, "other", self.messages("other")).close()
        self.other = self.other.rename(root / "other")

    def messages(self, name: str) -> MessageList:
        return raw_messages(self.spec, name, **self.recording)

    def send(self) -> None:
        trouble = self.sender.send_all()
        if trouble:
            raise RuntimeError(trouble)

    def take(self) -> None:
        self.stations.take(0, {})

    def clean(self, name: str) -> None:
        for path in (*self.root.glob(f"*/*/{name}*"), *self.root.glob("spool/*/sub")):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def close(self) -> None:
        self.client.close()
        self.stations.close()


def fuzz_one(r: Random, pipeline: Pipeline, name: str, place: str) -> str:
    """Spoil one episode and send it to the trainer.

    Returns:
        "refused", "accepted_unchanged", "silent_changes" or "valid".
    """
    spoil_episode, pipeline.intake.taken = r.choice(BEFORE if place == "messages" else FILES), None
    messages = pipeline.messages(name)
    writer = write_raw(
        pipeline.spool, name, spoil_episode(r, messages) if place == "messages" else messages
    )
    folder = writer.close()
    original = read_episode(folder, sealed=True) if place in ("spool", "way", "inbox") else None
    if place in ("unsealed", "spool"):
        spoil_episode(r, folder, pipeline.other)
    if place == "unsealed":
        with contextlib.suppress(Exception):  # an episode that cannot be sealed is sent without
            seal(folder)
    if place == "way":
        episode = episode_offer(folder)
        spoiled = spoil_parts(r, list(parts(folder, episode, [0] * len(episode.files))))
        reply = pipeline.client._call(pipeline.client._stub.Upload, iter(spoiled), 60.0)
        if reply.stored == bool(reply.error):
            raise RuntimeError(f"neither stored nor refused by name: {reply}")
    pipeline.send()
    if place == "inbox":
        spoil_episode(r, pipeline.server.inbox.folder / name, pipeline.other)
    pipeline.take()
    return verdict(pipeline.intake.taken, original)


def verdict(taken: Episode | None, original: Episode | None) -> str:
    if taken is None:
        return "refused"
    values = [
        *taken.observations.values(),
        taken.requested,
        taken.executed,
        taken.rewards,
        taken.discounts,
        *chunk_arrays(taken).values(),
    ]
    if not all(
        np.isfinite(value).all() and np.abs(value.astype(float)).max(initial=0.0) <= 1e6
        for value in values
    ):
        return "silent_changes"
    if original is None:
        return "valid"
    return "accepted_unchanged" if is_same(taken, original) else "silent_changes"


def chunk_arrays(episode: Episode) -> dict[str, np.ndarray]:
    """Return the recorded chunks of the policy."""
    chunks = vars(episode.chunks) if episode.chunks else {}
    return {name: np.asarray(value) for name, value in chunks.items() if value is not None}


def is_same(one: Episode, other: Episode) -> bool:
    arrays = ("requested", "executed", "rewards", "discounts", "stamps_ns")
    facts = ("id", "mode", "success", "policy_version", "spec_hash", "sources", "limits")
    return (
        all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
        and chunk_arrays(one).keys() == chunk_arrays(other).keys()
        and all(
            np.array_equal(value, chunk_arrays(other)[name])
            for name, value in chunk_arrays(one).items()
        )
        and all(getattr(one, name) == getattr(other, name) for name in facts)
        and one.observations.keys() == other.observations.keys()
        and all(
            np.array_equal(value, other.observations[name])
            for name, value in one.observations.items()
        )
    )


def pipelines(root: Path) -> Iterator[Pipeline]:
    task = load_task(ROOT / "configs/tasks/peg_insertion.yaml")
    with_images = task.with_images({"front": (8, 8)})
    for number, (spec, recording) in enumerate(
        [
            (task.spec, {"steps": 5}),
            (task.spec, {"steps": 20, "sources": {3: "operator"}, "chunk": (4, 2)}),
            (task.spec, {"steps": 2, "mode": "demonstration"}),
            (with_images.spec, {"steps": 6}),
        ]
    ):
        yield Pipeline(root / str(number), spec, recording)


def fuzz(episodes: int, seed: int, root: Path) -> dict[str, Any]:
    """Return the number of episodes by verdict; exceptions go to stderr."""
    r, counts, started = Random(seed), Counter(), time.perf_counter()
    all_pipelines = list(pipelines(root))
    for number in range(episodes):
        pipeline = all_pipelines[number % len(all_pipelines)]
        place = PLACES[number % len(PLACES)]
        name = f"f{number}"
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                result = fuzz_one(r, pipeline, name, place)
        except Exception as error:  # the benchmark's subject
            result = "exceptions"
            print(f"{name} ({place}): {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        counts[result] += 1
        if result == "silent_changes":
            print(f"{name} ({place}): silently changed", file=sys.stderr, flush=True)
        pipeline.clean(name)
    last_resort = sum(
        "cannot be read" in status
        for pipeline in all_pipelines
        for status in pipeline.intake.ids.values()
    )
    for pipeline in all_pipelines:
        pipeline.close()
    names = ("exceptions", "silent_changes", "refused", "accepted_unchanged", "valid")
    return {
        "episodes": episodes,
        **{name: counts[name] for name in names},
        "refused_by_the_last_resort": last_resort,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write one flat object there")
    arguments = parser.parse_args()
    memory = Path("/dev/shm")  # a file system in memory, where a flush is free
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as root:
        figures = fuzz(arguments.episodes, arguments.seed, Path(root))
    figures |= {
        "seed": arguments.seed,
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(figures, indent=1))
    if arguments.json:
        write(arguments.json, figures)
    sys.exit(bool(figures["exceptions"] or figures["silent_changes"]))


if __name__ == "__main__":
    main()
