"""The report on a damaged recording, and the bytes that a repair keeps."""

import struct
import zlib

import lz4.frame
import pytest
import zstandard
from mcap.reader import make_reader
from mcap.records import Chunk

from rlinf_core.core.errors import EpisodeError
from rlinf_core.data.repair import RepairResult, _decompress, find_fault, repair
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.raw_messages import MAX_CHUNK_BYTES
from rlinf_core.episodes.spool import Spool
from tests.messages import record

HEAD = struct.Struct("<BQ")
SCHEMA, CHANNEL, MESSAGE, CHUNK, ATTACHMENT, FOOTER = 3, 4, 5, 6, 9, 2


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool", min_free_mb=0)


@pytest.fixture
def folder(spool, task):
    """Return a recording of some chunks with two pictures each."""
    return record(spool, task.with_images({"front": (400, 480)}).spec, "c-1", steps=8).close()


def parts_of(data):
    """Opcode, begin of the content and its end, of each record."""
    at, parts = 8, []
    while at + HEAD.size <= len(data):
        opcode, length = HEAD.unpack_from(data, at)
        at += HEAD.size
        parts.append((opcode, at, at + length))
        at += length
        if opcode == FOOTER:
            break
    return parts


def flipped(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def messages_of(folder):
    with open(next(folder.glob("*.mcap")), "rb") as stream:
        return [
            (channel.topic, message.log_time, message.data)
            for _, channel, message in make_reader(stream, validate_crcs=True).iter_messages()
        ]


def test_an_intact_recording_has_no_fault_and_comes_out_the_same(folder, tmp_path, task):
    assert find_fault(folder) == "" == find_fault(folder, read_spec(task))
    result = repair(folder, tmp_path / "out/c-1")
    expected = messages_of(folder)
    assert result == RepairResult("episode", len(expected), (), "") and result.intact
    assert messages_of(tmp_path / "out/c-1") == expected
    assert find_fault(tmp_path / "out/c-1") == ""


def read_spec(task):
    return task.with_images({"front": (400, 480)}).spec


def test_faults_are_told_without_the_folder_twice(folder, task, tmp_path):
    other = find_fault(folder, task.spec)
    assert "this trainer serves" in other and str(folder) not in other
    (folder / "SHA256SUMS").rename(tmp_path / "moved")
    assert find_fault(folder) == "no SHA256SUMS: an intact episode that was never closed"
    (tmp_path / "moved").rename(folder / "SHA256SUMS")
    named = folder.rename(folder.with_name("b-1"))
    assert find_fault(named) == "expected the folder name c-1, that of its episode"
    (named / "metadata.yaml").unlink()
    assert find_fault(named) == (
        "no metadata.yaml: the recording is in progress or was interrupted"
    )


@pytest.mark.parametrize("kind", ["session", "incident"])
def test_a_recording_without_steps_is_whole_where_nothing_is_lost(tmp_path, task, kind):
    spool = Spool(tmp_path / "spool", min_free_mb=0, kind=kind)
    folder = record(spool, task.spec, "s-1", steps=4).close()
    count = len(messages_of(folder))
    assert find_fault(folder) == ""
    (folder / "SHA256SUMS").unlink()
    assert find_fault(folder) == (
        f"no SHA256SUMS: {count} intact messages; the recording was never closed"
    )
    result = repair(folder, tmp_path / "out/s-1")
    assert result == RepairResult(kind, count, (), "") and result.intact
    assert (tmp_path / "out/s-1/SHA256SUMS").exists()
    assert not RepairResult(kind, 4, ("a chunk",), "").intact
    assert RepairResult("episode", 4, ("a chunk",), "").intact
    assert not RepairResult("episode", 4, (), "x").intact
    folder = record(Spool(tmp_path / "b", min_free_mb=0, kind=kind), task.spec, "s-2").close()
    flipped(folder / "s-2.mcap", 2000)
    assert "s-2.mcap does not fit SHA256SUMS" in find_fault(folder)


def test_one_bit_costs_one_chunk_and_the_result_says_which(folder, tmp_path):
    file = folder / "c-1.mcap"
    chunks = [part for part in parts_of(file.read_bytes()) if part[0] == CHUNK]
    assert len(chunks) >= 4
    expected = messages_of(folder)
    _, begin, end = chunks[2]
    flipped(file, (begin + end) // 2)
    result = repair(folder, tmp_path / "out/c-1")
    assert len(result.lost) == 1 and result.kind == "episode" and not result.intact
    size = int(result.lost[0].split(" of ")[1].split(" bytes: ")[0])
    assert result.lost[0].startswith("a chunk of ") and end - begin - 100 < size < end - begin
    intact = messages_of(tmp_path / "out/c-1")
    assert result.messages == len(intact) < len(expected) and set(intact) < set(expected)
    assert intact == [message for message in expected if message in intact]
    assert result.fault and not result.fault.startswith("episode /")
    assert not (tmp_path / "out/c-1/SHA256SUMS").exists()


def test_a_lost_first_chunk_leaves_the_others_by_the_summary_or_names_what_nobody_knows(
    folder, tmp_path
):
    file = folder / "c-1.mcap"
    data = file.read_bytes()
    parts = parts_of(data)
    _, begin, end = next(part for part in parts if part[0] == CHUNK)
    flipped(file, end - 5)
    with_summary = repair(folder, tmp_path / "out/c-1")
    assert with_summary.messages > 10 and len(with_summary.lost) == 1
    summary = next(begin for opcode, begin, _ in parts if opcode == 15)  # the data's end
    file.write_bytes(file.read_bytes()[: summary - HEAD.size])
    with pytest.raises(EpisodeError) as refused:
        repair(folder, tmp_path / "more/c-1")
    assert str(refused.value).endswith(
        f"; {with_summary.messages} messages of topics without a description. Nothing can be "
        "repaired"
    )
    assert "expected readable messages, got none: a chunk of " in str(refused.value)


@pytest.mark.parametrize(
    "left, begins, more",
    [
        (0, 0, ", or its length is damaged"),
        (1, 0, ", or its length is damaged"),
        (100, 0, ", or its length is damaged"),
        (-1, -HEAD.size, ""),
        (1 - HEAD.size, -HEAD.size, ""),
    ],
)
def test_a_cut_is_told_once_with_its_place(folder, tmp_path, left, begins, more):
    file = folder / "c-1.mcap"
    data = file.read_bytes()
    chunks = [part for part in parts_of(data) if part[0] == CHUNK]
    begin = chunks[2][1]
    file.write_bytes(data[: begin + left])
    result = repair(folder, tmp_path / "out/c-1")
    assert result.lost == (f"the rest from byte {begin + begins}: truncated{more}",)
    assert result.messages > 0


def test_where_nothing_can_be_read_nothing_is_left(folder, tmp_path):
    file = folder / "c-1.mcap"
    data = file.read_bytes()
    file.write_bytes(data[:8])
    with pytest.raises(EpisodeError) as refused:
        repair(folder, tmp_path / "out/c-1")
    assert str(refused.value) == (
        f"{folder}: expected readable messages, got none: no data. Nothing can be repaired"
    )
    file.write_bytes(data[:20])
    with pytest.raises(EpisodeError, match="got none: the rest from byte 17: truncated, or its le"):
        repair(folder, tmp_path / "out/c-1")
    assert not (tmp_path / "out/c-1").exists()
    (folder / "d-1.mcap").write_bytes(data)
    for count in (2, 0):
        with pytest.raises(EpisodeError) as refused:
            repair(folder, tmp_path / "out/c-1")
        assert str(refused.value) == (
            f"{folder}: expected one MCAP file, got {count}. It cannot be repaired"
        )
        for path in folder.glob("*.mcap"):
            path.unlink()


def test_attachments_are_kept_where_their_checksum_matches(spool, task, tmp_path):
    spool.attachments = lambda: {"a": b"first", "b": b"second"}
    folder = record(spool, task.spec, "c-1", steps=4).close()
    file = folder / "c-1.mcap"
    data = file.read_bytes()
    first, second = (part for part in parts_of(data) if part[0] == ATTACHMENT)
    flipped(file, data.index(b"second"))
    result = repair(folder, tmp_path / "out/c-1")
    length = second[2] - second[1]
    assert result.lost == (
        f"an attachment of {length} bytes: ValueError: its checksum does not match",
    )
    assert result.fault == "" and result.intact
    with open(tmp_path / "out/c-1/c-1.mcap", "rb") as stream:
        (read_attachment,) = make_reader(stream).iter_attachments()
    assert (read_attachment.name, read_attachment.data) == (
        "a",
        b"first",
    ) and read_attachment.create_time > 0
    assert len(read_episode(tmp_path / "out/c-1", sealed=True)) == 4


def chunk(compression, data, size):
    return Chunk(compression, data, 0, 0, zlib.crc32(b""), size)


def test_chunks_of_each_compression_are_unpacked_to_their_size():
    text = b"abc" * 1000
    packed = {
        "lz4": lz4.frame.compress(text),
        "zstd": zstandard.ZstdCompressor().compress(text),
    }
    for kind, data in packed.items():
        unpacked = _decompress(chunk(kind, data, len(text)))
        assert (unpacked.compression, unpacked.data) == ("", text)
        for size, more in ((len(text) - 1, "more"), (len(text) + 1, str(len(text)))):
            with pytest.raises(ValueError) as refused:
                _decompress(chunk(kind, data, size))
            assert str(refused.value) == f"expected {size} bytes when unpacked, got {more}"
    plain = chunk("", text, 5)
    assert _decompress(plain) is plain
    with pytest.raises(ValueError) as refused:
        _decompress(chunk("br\x1b", b"", 5))
    assert str(refused.value) == "expected a compression of lz4 or zstd, got br\\x1b"
    with pytest.raises(ValueError) as refused:
        _decompress(chunk("lz4", b"", MAX_CHUNK_BYTES + (1 << 20)))
    mib = MAX_CHUNK_BYTES >> 20
    assert str(refused.value) == f"expected at most {mib} MiB when unpacked, got {mib + 1}"
    with pytest.raises(ValueError, match="bytes when unpacked, got 3000"):
        _decompress(chunk("zstd", packed["zstd"], MAX_CHUNK_BYTES))
