"""The whole episodes below some folders, their specs, and what a recorder attached."""

import json
import shutil

import numpy as np
import pytest

from rlinf_core.core.errors import EpisodeError
from rlinf_core.data.episodes import (
    check_values,
    episode_spec,
    intact_episodes,
    read_attachment,
    recorded_spec,
)
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from rlinf_core.recipes import load_recipe, recipe_yaml, station_task
from tests.messages import record


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool", min_free_mb=0)


def test_many_episodes_come_in_their_order_and_each_once(spool, task, tmp_path):
    for number in range(9):
        record(spool, task.spec, f"a-{number}", steps=2 + number).close()
    shutil.copytree(spool.root / "closed/a-4", tmp_path / "twice/a-4")
    read = list(intact_episodes([spool.root, tmp_path / "twice"]))
    assert [folder for folder, _ in read] == [spool.root / f"closed/a-{n}" for n in range(9)]
    assert [(episode.id, len(episode)) for _, episode in read] == [
        (f"a-{number}", 2 + number) for number in range(9)
    ]
    first, _ = next(iter(intact_episodes([spool.root])))  # and left there
    assert first.name == "a-0"


def test_what_was_not_closed_is_left_out_and_told(spool, task):
    record(spool, task.spec, "a-1").close()
    record(spool, task.spec, "a-2").abort()
    record(spool, task.spec, "a-3", leave=("applied",)).abort()
    lines = []
    assert [folder.name for folder, _ in intact_episodes([spool.root], lines.append)] == ["a-1"]
    end = ": no SHA256SUMS: it was interrupted or aborted"
    assert lines == [
        f"left out: {spool.root}/broken/a-2{end}",
        f"left out: {spool.root}/broken/a-3{end}",
    ]


def test_a_folder_without_an_intact_episode_is_told(spool, task, tmp_path):
    record(spool, task.spec, "a-1").abort()
    with pytest.raises(EpisodeError) as refused:
        list(intact_episodes([spool.root, spool.root], lambda line: None))
    assert str(refused.value) == (
        f"{spool.root}, {spool.root}: expected an intact episode, got none. `rlinf data check` "
        "shows the reason"
    )


def test_a_recording_without_its_seal_that_is_damaged_is_left_out_and_told(spool, task, tmp_path):
    good = record(spool, task.spec, "a-1").close()
    shutil.copytree(record(spool, task.spec, "a-2").close(), tmp_path / "some/a-2")
    (tmp_path / "some/a-2/SHA256SUMS").unlink()
    file = tmp_path / "some/a-2/a-2.mcap"
    file.write_bytes(file.read_bytes()[:-300])
    lines = []
    (only,) = intact_episodes([good, tmp_path / "some"], lines.append)
    assert only[0] == good and len(lines) == 1
    begin = f"left out: {tmp_path}/some/a-2: "
    assert lines[0].startswith(begin) and not lines[0].removeprefix(begin).startswith("episode")


def test_a_damaged_one_is_named_with_the_remedy(spool, task):
    folder = record(spool, task.spec, "a-1").close()
    file = folder / "a-1.mcap"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(EpisodeError) as refused:
        list(intact_episodes([spool.root]))
    assert str(folder) in str(refused.value) and str(refused.value).endswith(
        ". `rlinf data check` lists all damaged recordings, `rlinf data repair` keeps their intact "
        "part"
    )


def test_a_disk_that_fails_names_the_recording(spool, task, monkeypatch):
    folder = record(spool, task.spec, "a-1").close()

    def fails(path, *_, **__):
        raise error

    monkeypatch.setattr("rlinf_core.data.episodes.read_episode", fails)
    for named in (None, "elsewhere"):
        error = OSError(5, "Input/output error", named) if named else OSError(5, "Input/output")
        with pytest.raises(OSError, match="Input/output") as raised:
            list(intact_episodes([spool.root]))
        assert raised.value.filename == (named or str(folder))


def test_two_of_one_id_or_of_other_specs_are_refused_with_both(spool, task, tmp_path):
    one = record(spool, task.spec, "a-1").close()
    other = record(Spool(tmp_path / "twice", min_free_mb=0), task.spec, "a-1", steps=7).close()
    with pytest.raises(EpisodeError) as refused:
        list(intact_episodes([spool.root, tmp_path / "twice"]))
    assert str(refused.value) == (
        f"expected unique ids, got 'a-1' with different content in {one} and in {other}. Leave one "
        "of them out"
    )
    with_camera = task.with_images({"front": (4, 4)}).spec
    other = record(Spool(tmp_path / "trees", min_free_mb=0), with_camera, "c-1").close()
    with pytest.raises(EpisodeError) as refused:
        list(intact_episodes([spool.root, tmp_path / "trees"]))
    begin = (
        f"expected episodes of the same specs, got {task.spec.hash} in {one} and {with_camera.hash} in "
        f"{other}: "
    )
    assert str(refused.value).startswith(begin) and "'front'" in str(refused.value)
    assert str(refused.value).endswith(". Process them separately")


def test_specs_that_differ_in_units_alone_are_told_so(spool, task, tmp_path):
    record(spool, task.spec, "a-1").close()

    def others(topic, _, message):
        if topic == "episode":
            message.spec_hash = "0123456789ab"

    record(Spool(tmp_path / "b", min_free_mb=0), task.spec, "b-1", change=others).close()
    with pytest.raises(EpisodeError, match=": units, bounds, scales or sources differ. Process"):
        list(intact_episodes([spool.root, tmp_path / "b"]))


def test_the_specs_of_a_recording_show_names_shapes_and_rate(spool, task):
    spec = task.with_images({"front": (4, 6)}).spec
    episode = read_episode(record(spool, spec, "a-1", steps=6).close())
    shown = recorded_spec(episode)
    assert [(item.name, item.shape, item.dtype) for item in shown.observation] == [
        *((item.name, (3,), "float32") for item in spec.vectors),
        ("front", (4, 6, 3), "uint8"),
    ]
    action = shown.action
    assert (action.control_mode, action.names, action.scale, action.units) == (
        "",
        ("action_0", "action_1", "action_2"),
        (1.0, 1.0, 1.0),
        ("", "", ""),
    )
    assert (shown.control_hz, shown.instruction) == (10.0, "do it")
    late = episode.stamps_ns.copy()
    late[1:] += 3_000_000  # once; the median does not mind
    check_values(episode)
    assert recorded_spec(_changed(episode, stamps_ns=late)).control_hz == 10.0
    assert recorded_spec(_changed(episode, stamps_ns=late // 3)).control_hz == 30.0
    with pytest.raises(EpisodeError, match="this trainer serves"):
        check_values(episode, task.spec)


def _changed(episode, **changes):
    from dataclasses import replace

    return replace(episode, **changes)


def test_values_are_checked_without_specs_too(spool, task):
    episode = read_episode(record(spool, task.spec, "a-1").close())
    force = episode.observations["force"].copy()
    force[2, 1] = np.nan
    spoiled = _changed(episode, observations=episode.observations | {"force": force})
    for spec in (None, task.spec):
        check_values(episode, spec)
        with pytest.raises(EpisodeError, match="'force'.*expected finite values"):
            check_values(spoiled, spec)


def test_the_station_s_specs_come_from_the_nearest_that_fits(spool, task, tmp_path):
    recipe = load_recipe("demo")
    spec = station_task(recipe).spec
    folder = record(spool, spec, "a-1").close()
    episode = read_episode(folder)
    assert episode_spec(episode, folder, "demo") == spec
    assert episode_spec(episode, folder, None) == recorded_spec(episode)
    with pytest.raises(EpisodeError) as refused:
        episode_spec(episode, folder, "demo_vision")
    other = station_task(load_recipe("demo_vision")).spec
    assert str(refused.value) == (
        f"{folder}: expected specs {other.hash}, of recipe 'demo_vision', got {spec.hash}:\n"
        f"{other.difference(recorded_spec(episode))}\nName the recipe of this recording"
    )
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    assert episode_spec(episode, folder, None) == spec, "of the run around it"
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(load_recipe("demo_vision")))
    assert episode_spec(episode, folder, None) == recorded_spec(episode)
    (spool.root / "recipe.yaml").write_text("station: {robot: none}\n")
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    assert episode_spec(episode, folder, None) == recorded_spec(episode), "the nearest one counts"


def test_what_a_recorder_attached_is_found_by_its_name(spool, task):
    spec = station_task(load_recipe("demo")).spec
    other = json.dumps(station_task(load_recipe("demo_vision")).spec.to_dict()).encode()
    attached = [
        ("a-1", {"specs.json": json.dumps(spec.to_dict()).encode(), "b": b"\x00\x01"}, True),
        ("a-2", {"specs.json": other}, False),
        ("a-3", {"specs.json": b"[]"}, False),
        ("a-4", {"specs.json": b"{}"}, False),
        ("a-5", {"specs.json": b"\xff"}, False),
        ("a-6", {"more.json": b"1"}, False),
    ]
    for name, files, fits in attached:
        spool.attachments = lambda files=files: files
        folder = record(spool, spec, name).close()
        episode = read_episode(folder)
        assert (episode_spec(episode, folder, None) == spec) is fits
        assert fits or episode_spec(episode, folder, None) == recorded_spec(episode)
    folder = spool.root / "closed/a-1"
    assert read_attachment(folder, "b") == b"\x00\x01" and read_attachment(folder, "c") is None
    assert json.loads(read_attachment(folder, "specs.json")) == spec.to_dict()
    (folder / "a-0.mcap").write_bytes(b"no MCAP file")
    assert read_attachment(folder, "b") == b"\x00\x01"
    assert read_attachment(folder / "none", "b") is None
