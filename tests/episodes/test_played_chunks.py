"""Training data from a policy's recorded chunks: only the executed part of each chunk."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.messages import to_ns, typestore
from rlinf_core.episodes.played_chunks import applied_steps, arm_of, played_chunks
from rlinf_core.episodes.spool import Spool
from rlinf_core.episodes.validate import check_episode
from tests.messages import raw_messages, record, write_raw

MS = 1_000_000
LOCKSTEP = tuple(range(0, 600, 100))  # [ms], five transitions
DRIFTING = (0, 96, 207, 298, 406, 493)


def stamp(ms):
    ns = 10**12 + round(ms * MS)
    return SimpleNamespace(sec=ns // 10**9, nanosec=ns % 10**9)


def sent(seq, at, **changes):
    """Chunk ``seq`` answers what was observed at ``at`` [ms]: four actions, of which two are meant
    to be played.
    """
    chunk = dict(
        session="s",
        seq=seq,
        observation_stamp=stamp(at),
        horizon=4,
        execute=2,
        drawn_dim=3,
        drawn=np.full(12, seq, np.float32),
        log_probs=-10.0 * seq - np.arange(4, dtype=np.float32),
        policy_version=7,
    )
    return SimpleNamespace(**chunk | changes)


def applied(seq, index, answers, source="policy", session="s"):
    """Action ``index`` of the chunk that answers ``answers`` [ms]."""
    return SimpleNamespace(
        source=source,
        session=session,
        seq=seq,
        index=index,
        header=SimpleNamespace(stamp=stamp(answers + 100 * index)),
    )


def played(chunks, records, steps=LOCKSTEP, operator=()):
    """(time step, how many actions) of each chunk that counts."""
    stamps = np.array([10**12 + ms * MS for ms in steps])
    sources = ["operator" if step in operator else "policy" for step in range(len(steps) - 1)]
    result = played_chunks("episode x", chunks, records, stamps, sources)
    assert (
        len(result)
        == len(result.starts)
        == len(result.drawn)
        == len(result.log_probs)
        == len(result.versions)
    )
    for start, drawn, log_probs in zip(result.starts, result.drawn, result.log_probs, strict=True):
        chunk = next(candidate for candidate in chunks if candidate.seq == drawn[0])
        assert to_ns(chunk.observation_stamp) == stamps[start]
        assert np.array_equal(log_probs, chunk.log_probs[: chunk.execute])
    return list(zip(result.starts.tolist(), result.lengths.tolist(), strict=True))


def test_each_chunk_counts_until_the_next_one_or_the_end():
    chunks = [sent(1, 0), sent(2, 200), sent(3, 400)]
    # begun after the last time step
    records = [
        applied(1, 0, 0),
        applied(1, 1, 0),
        applied(2, 0, 200),
        applied(2, 1, 200),
        applied(3, 0, 400),
        applied(3, 1, 400),
    ]
    assert played(chunks, records) == [(0, 2), (2, 2), (4, 1)]
    assert played(chunks[::-1], records[::-1]) == [(0, 2), (2, 2), (4, 1)], "topics are not ordered"


@pytest.mark.parametrize("steps", [LOCKSTEP, DRIFTING])
def test_in_real_time_the_last_chunk_goes_on_until_the_next_one_is_there(steps):
    """Time steps come some milliseconds early or late, and inference takes a part of one."""
    chunks = [sent(1, steps[0]), sent(2, steps[2]), sent(3, steps[4])]
    records = [
        applied(1, 0, steps[0]),
        applied(1, 1, steps[0]),
        applied(1, 2, steps[0]),
        applied(2, 0, steps[2]),
        applied(2, 1, steps[2]),
        applied(2, 2, steps[2]),
        applied(3, 0, steps[4]),
    ]
    assert played(chunks, records, steps) == [(0, 2), (2, 2), (4, 1)]


def test_the_first_number_of_a_chunk_is_0_and_one_number_may_be_drawn():
    records = [applied(0, 0, 0), applied(0, 1, 0)]
    assert played([sent(0, 0)], records) == [(0, 2)]
    one = sent(0, 0, drawn_dim=1, drawn=np.zeros(1, np.float32))
    assert played([one], records) == [(0, 2)]


def test_a_chunk_of_a_wrong_size_is_named_with_its_episode():
    wrong = sent(3, 0, drawn=np.zeros(11, np.float32))
    with pytest.raises(EpisodeError) as refused:
        played([wrong], [applied(3, 0, 0)])
    assert str(refused.value) == (
        "episode x: chunk 3 of the policy: drawn: expected 1 or 4 rows of 3, at most 32768 "
        "numbers, got 11. It is not used for training"
    )


def test_a_chunk_whose_first_action_came_too_late_does_not_count_and_the_one_before_counts_as_meant():
    chunks = [sent(1, 0), sent(2, 200), sent(3, 400)]
    records = [
        applied(1, 0, 0),
        applied(1, 1, 0),
        applied(1, 2, 0),
        applied(2, 1, 200),
        applied(3, 0, 400),
    ]
    assert played(chunks, records) == [(0, 2), (4, 1)]


def test_a_chunk_that_another_one_replaced_counts_as_far_as_it_was_played():
    chunks = [sent(1, 0), sent(2, 100), sent(3, 100), sent(4, 300)]
    records = [
        applied(1, 0, 0),
        applied(1, 1, 0),
        applied(2, 0, 100),
        applied(3, 0, 100),
        applied(3, 1, 100),
        applied(4, 0, 300),
        applied(4, 1, 300),
    ]
    assert played(chunks, records) == [(0, 1), (1, 2), (3, 2)]
    result = played_chunks(
        "", chunks, records, np.array([10**12 + ms * MS for ms in LOCKSTEP]), ["policy"] * 5
    )
    assert result.drawn[:, 0].tolist() == [1, 3, 4], "of two for one time step the second"


@pytest.mark.parametrize(
    "operator, expected",
    [
        ((1,), [(0, 1), (2, 2), (4, 1)]),
        ((2, 3), [(0, 2), (4, 1)]),
        ((3,), [(0, 2), (2, 1), (4, 1)]),
        ((0, 1, 2, 3, 4), []),
    ],
    ids=["second action", "a whole chunk", "from the second", "all along"],
)
def test_a_takeover_ends_a_chunk_before_its_time_step(operator, expected):
    chunks = [sent(1, 0), sent(2, 200), sent(3, 400)]
    records = [
        applied(1, 0, 0),
        applied(1, 1, 0),
        applied(2, 0, 200),
        applied(2, 1, 200),
        applied(3, 0, 400),
    ]
    assert played(chunks, records, operator=operator) == expected


def test_what_was_sent_while_the_arm_was_held_does_not_count():
    chunks = [sent(1, 0), sent(2, 100), sent(3, 200), sent(4, 300)]
    assert played(chunks, [applied(1, 0, 0), applied(4, 0, 300), applied(4, 1, 300)]) == [
        (0, 1),
        (3, 2),
    ]
    assert played(chunks, []) == []


def test_an_episode_without_a_played_chunk_has_no_rows_of_the_usual_types():
    """A learner joins the arrays of several episodes: their types must agree."""
    stamps = np.array([10**12 + ms * MS for ms in LOCKSTEP])
    some, none = (
        played_chunks("episode x", [sent(1, 0)], records, stamps, ["policy"] * 5)
        for records in ([applied(1, 0, 0)], [])
    )
    assert len(none) == 0 and none.execute == some.execute == 2
    for name, shape in {
        "starts": (0,),
        "lengths": (0,),
        "drawn": (0, 12),
        "log_probs": (0, 2),
        "versions": (0,),
    }.items():
        array = getattr(none, name)
        assert array.shape == shape and array.dtype == getattr(some, name).dtype, name
    assert none.starts.dtype == none.lengths.dtype == none.versions.dtype == np.int64
    assert none.drawn.dtype == none.log_probs.dtype == np.float32


def test_a_time_step_that_took_two_periods_ends_a_chunk():
    """Two actions are executed in it, but one time step has only one."""
    steps = (0, 100, 310, 410, 510, 610)
    records = [
        applied(1, 0, 0),
        applied(1, 1, 0),
        applied(1, 2, 0),
        applied(2, 0, 310),
        applied(2, 1, 310),
    ]
    assert played([sent(1, 0, execute=3), sent(2, 310, execute=3)], records, steps) == [
        (0, 1),
        (2, 2),
    ]


def test_other_episodes_other_sessions_and_other_people_do_not_count():
    earlier = [sent(8, -200, horizon=9, drawn=np.zeros(1)), sent(9, -110)]
    records = [
        applied(8, 1, -200),
        applied(9, 1, -110),
        applied(9, 2, -110),
        applied(1, 0, 0),
        applied(1, 1, 0),
        applied(2, 0, 200, session="t"),
        applied(3, 0, 400, source="operator"),
    ]
    assert played([*earlier, sent(1, 0), sent(2, 200), sent(3, 400)], records) == [(0, 2)]
    assert played([sent(2, 200)], [applied(1, 0, 0), applied(2, 0, 200)]) == [(2, 1)], (
        "a chunk that was not recorded"
    )


def test_a_replay_gets_it_by_time_steps():
    chunks = [sent(1, 0), sent(2, 200)]
    result = played_chunks(
        "",
        chunks,
        [applied(1, 0, 0), applied(2, 0, 200), applied(2, 1, 200)],
        np.array([10**12 + ms * MS for ms in LOCKSTEP]),
        ["policy"] * 5,
    )
    assert result.chunk_starts(5).tolist() == [True, False, True, False, False]
    assert result.latents(5).shape == (5, 12) and result.latents(5)[:, 0].tolist() == [
        1,
        0,
        2,
        0,
        0,
    ]
    assert (
        result.versions.tolist() == [7, 7]
        and result.execute == 2
        and result.drawn.dtype == np.float32
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            dict(drawn=np.zeros(11)),
            "chunk 2 of the policy: drawn: expected 1 or 4 rows of 3, at most 32768 numbers, got "
            "11",
        ),
        (dict(drawn=np.zeros(6)), "drawn: expected 1 or 4 rows of 3, at most 32768 numbers, got 6"),
        (dict(drawn=np.zeros(0)), "got 0"),
        (dict(drawn=np.zeros(0), drawn_dim=0), "rows of 0, at most 32768 numbers, got 0"),
        (dict(drawn_dim=0), "rows of 0"),
        (dict(drawn=np.zeros(40_000), drawn_dim=40_000), "at most 32768 numbers, got 40000"),
        (dict(log_probs=np.zeros(2)), r"log_probs: expected none, 1 or 4 \(its horizon\), got 2"),
        (dict(execute=0), r"execute: expected 1 to 4 \(its horizon\), got 0"),
        (dict(execute=5), "got 5"),
        (dict(drawn_dim=12, drawn=np.zeros(48)), "expected chunks of one size"),
        (dict(log_probs=np.zeros(0)), "of one size"),
        (dict(execute=1), "of one size"),
    ],
)
def test_a_chunk_that_does_not_hang_together_is_refused_by_name(changes, message):
    with pytest.raises(EpisodeError, match=message):
        played([sent(1, 0), sent(2, 200, **changes)], [applied(1, 0, 0)])


@pytest.mark.parametrize(
    "changes, sizes",
    [
        (dict(drawn_dim=12, log_probs=np.full(1, 5.0)), (12, 1)),
        (dict(drawn=np.zeros(5), drawn_dim=5), (5, 2)),
    ],
    ids=["one row, one log-probability", "noise of another size"],
)
def test_latent_noise_is_one_row(changes, sizes):
    stamps = np.array([10**12, 10**12 + 100 * MS])
    result = played_chunks("", [sent(1, 0, **changes)], [applied(1, 0, 0)], stamps, ["policy"])
    assert (result.drawn.shape, result.log_probs.shape) == ((1, sizes[0]), (1, sizes[1]))


# Recordings
@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


def test_a_recording_says_what_was_drawn_to_the_last_bit(spool, task):
    episode = read_episode(
        record(spool, task.spec, steps=5, chunk=(4, 2), sources={2: "operator"}).close()
    )
    chunks = episode.chunks
    assert (
        chunks.starts.tolist() == [0, 4]
        and chunks.lengths.tolist() == [2, 1]
        and chunks.versions.tolist() == [4, 4]
    )
    expected = np.arange(12, dtype=np.float32) / 7
    assert chunks.drawn.dtype == np.float32 and np.array_equal(
        chunks.drawn, [expected, expected + np.float32(4)]
    )
    assert np.array_equal(chunks.log_probs, [-expected[:2], -expected[:2] - np.float32(4)])
    check_episode(episode, task.spec, 100)


def test_in_real_time_actions_are_of_the_time_steps_that_they_were_meant_for(spool, task):
    """Every other time step comes 4 ms late; and until the second chunk is there, the first one
    goes on.
    """

    def late(topic, number, message):
        if topic == "timestep" and number % 2:
            message.header.stamp.nanosec += 4 * MS

    messages, kind = raw_messages(task.spec, chunk=(4, 2), change=late), "rlinf_msgs/msg/Applied"
    (first,) = [
        raw for topic, _, ns, raw in messages if topic == "/station/applied" and ns == 100 * MS
    ]
    more = typestore().deserialize_cdr(first, kind)
    more.index, more.header.stamp.nanosec, more.requested = 2, 203 * MS, np.full(3, 0.5)
    messages.append(
        ("/station/applied", kind, 203 * MS, bytes(typestore().serialize_cdr(more, kind)))
    )
    episode = read_episode(write_raw(spool, "a-1", messages).close())
    assert episode.sources == ("policy",) * 5
    assert episode.requested[:, 2] == pytest.approx([0.0, 0.001, 0.002, 0.003, 0.004])
    assert episode.executed[:, 0] == pytest.approx([0.01, 0.01, 0.02, 0.01, 0.01])
    assert (episode.chunks.starts.tolist(), episode.chunks.lengths.tolist()) == (
        [0, 2, 4],
        [2, 2, 1],
    )


def test_a_recording_without_what_was_drawn_is_read_as_before(spool, task, monkeypatch):
    """An old recording contains its own message definitions, without later fields."""
    new = read_episode(record(spool, task.spec, "new", chunk=(4, 2)).close())
    types, added = {}, ("float32[] drawn", "uint32 drawn_dim", "float32[] log_probs")
    for path in sorted(Path("ros_ws/src/rlinf_msgs/msg").glob("*.msg")):
        lines = [line for line in path.read_text().splitlines() if not line.startswith(added)]
        types |= get_types_from_msg("\n".join(lines), f"rlinf_msgs/msg/{path.stem}")
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(types)
    assert "drawn" not in store.types["rlinf_msgs/msg/ActionChunk"].__dataclass_fields__
    monkeypatch.setattr("rlinf_core.episodes.spool.typestore", lambda: store)
    old = read_episode(record(spool, task.spec, "old", chunk=(4, 2), store=store).close())
    assert old.chunks is None and new.chunks is not None
    for name in ("requested", "executed", "rewards", "discounts", "stamps_ns"):
        assert np.array_equal(getattr(old, name), getattr(new, name))
    assert (old.sources, old.instruction) == (new.sources, "do it")
    check_episode(old, task.spec, 100)
    assert read_episode(record(spool, task.spec, "none").close()).chunks is None


def test_a_wrong_count_is_refused_by_name(spool, task):
    def shorter(topic, number, message):
        if topic == "policy/action" and number == 1:
            message.log_probs = message.log_probs[:3]

    with pytest.raises(
        EpisodeError,
        match="chunk 2 of the policy: log_probs: expected none, 1 or 4 .its horizon., got 3",
    ):
        read_episode(record(spool, task.spec, chunk=(4, 2), change=shorter).close())


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("log_probs", np.nan, "log-probabilities: expected finite values within 1e.06, got nan"),
        ("log_probs", -np.inf, "log-probabilities: expected finite values within 1e.06, got -inf"),
        ("drawn", np.inf, "samples of the policy: expected finite values within 1e.06, got inf"),
        ("versions", 5, "chunks: expected chunks of the episode's policy, version 4, got 5"),
    ],
)
def test_what_is_not_finite_or_of_another_policy_is_refused_by_name(
    spool, task, name, value, message
):
    episode = read_episode(record(spool, task.spec, chunk=(4, 2)).close())
    spoiled = getattr(episode.chunks, name).copy()
    spoiled[-1:] = value
    with pytest.raises(EpisodeError, match=message):
        check_episode(
            replace(episode, chunks=replace(episode.chunks, **{name: spoiled})), task.spec, 100
        )
    without = replace(episode, chunks=replace(episode.chunks, log_probs=None))
    check_episode(without, task.spec, 100)


@pytest.mark.parametrize(
    "at, step",
    [(-1, -1), (0, 0), (74, 0), (75, 1), (100, 1), (174, 1), (175, 2), (199, 2), (1000, 2)],
)
def test_an_action_of_the_last_quarter_of_a_time_step_belongs_to_the_next(at, step):
    stamps = np.array([10**12 + ms * MS for ms in (0, 100, 200)])
    record = SimpleNamespace(header=SimpleNamespace(stamp=stamp(at)))
    assert applied_steps(stamps, [record]) == [step]


def test_stamps_of_today_are_compared_to_the_nanosecond():
    """They are too large for a float, whose neighbours are 256 ns apart."""
    first = 1_764_500_000_000_000_001
    stamps = np.array([first, first + 100 * MS, first + 200 * MS])
    quarter = first + 75 * MS
    records = [
        SimpleNamespace(
            header=SimpleNamespace(stamp=SimpleNamespace(sec=ns // 10**9, nanosec=ns % 10**9))
        )
        for ns in (quarter - 1, quarter)
    ]
    assert applied_steps(stamps, records) == [0, 1]


def test_a_chunk_counts_as_far_as_all_arms_played_it():
    def of(arm, *records):
        return [SimpleNamespace(**vars(record) | {"arm": arm}) for record in records]

    first = [applied(1, 0, 0), applied(1, 1, 0)]
    second = [applied(2, 0, 200), applied(2, 1, 200)]
    chunks = [sent(1, 0), sent(2, 200)]
    both = [*of("a/left", *first, *second), *of("a/right", *first, *second)]
    assert played(chunks, both) == [(0, 2), (2, 2)]
    one_late = [*of("a/left", *first, *second), *of("a/right", *first, second[0])]
    assert played(chunks, one_late) == [(0, 2), (2, 1)]
    one_still = [*of("a/left", *first, *second), *of("a/right", *second)]
    assert played(chunks, one_still) == [(2, 2)]
    by_hand = of("a/right", applied(1, 0, 0, source="operator"))
    assert played(chunks, [*of("a/left", *first), *by_hand]) == []


def test_chunks_without_log_probabilities_have_none():
    stamps = np.array([10**12 + ms * MS for ms in LOCKSTEP])
    chunk = sent(1, 0, log_probs=np.zeros(0, np.float32))
    result = played_chunks("episode x", [chunk], [applied(1, 0, 0)], stamps, ["policy"] * 5)
    assert len(result) == 1 and result.log_probs is None


def test_a_draw_has_32768_numbers_at_most_and_a_record_may_name_no_arm():
    most = sent(1, 0, drawn_dim=32768, drawn=np.zeros(32768, np.float32))
    stamps = np.array([10**12 + ms * MS for ms in LOCKSTEP])
    record = applied(1, 0, 0)
    result = played_chunks("episode x", [most], [record], stamps, ["policy"] * 5)
    assert result.drawn.shape == (1, 32768)
    assert arm_of(record) == "" and arm_of(SimpleNamespace(arm="/a/left")) == "/a/left"
