"""Ray's errors for a failed process, machine or store: who continues, and no episode is blamed."""

import runpy
import sys

import pytest
import ray
from ray import exceptions

from rlinf_core.core.errors import (
    REFUSED,
    IngestError,
    RecipeError,
    RestartLimitError,
    RlinfError,
    SpecError,
    StartupError,
)
from rlinf_core.episodes.spool import Spool
from rlinf_core.trainer.distributed import ray_cluster, replay_shards
from rlinf_core.trainer.distributed.group import LearnerGroup
from rlinf_core.trainer.distributed.readers import Readers
from rlinf_core.trainer.distributed.replay_shards import ReplayShards
from rlinf_core.trainer.distributed.rollout_workers import RolloutWorkers
from rlinf_core.trainer.sources.recordings import Intake
from tests.messages import record

pytestmark = pytest.mark.timed

LOST = exceptions.ObjectLostError("a" * 56, None, "")


def at_once(reason):
    """Return Ray's error for an actor whose ``__init__`` raised."""
    return exceptions.ActorDiedError(
        exceptions.RayTaskError("__init__", f"Traceback\n{reason}", ValueError(reason))
    )


def task_error(cause):
    """Return Ray's error for a task that raised."""
    return exceptions.RayTaskError("f", "Traceback", cause).as_instanceof_cause()


class Here:
    """Ray, as it is to its callers, with actors in this process; ``put`` and ``get`` raise what
    stands there in turn.
    """

    exceptions = exceptions

    def __init__(self, put=(), get=()):
        self.to_raise, self.spawned = {"put": list(put), "get": list(get)}, 0

    def remote(self, *args, **options):
        return lambda kind: FakeActor(self, kind)

    def put(self, value):
        return self._answer("put", value)

    def get(self, call):
        return self._answer("get", call)

    def _answer(self, of, value):
        error = self.to_raise[of].pop(0) if self.to_raise[of] else None
        if error is not None:
            raise error
        return value() if callable(value) else value

    def kill(self, actor):
        pass


class FakeActor:
    """An actor class, and an actor."""

    def __init__(self, owner, kind):
        self.owner, self.kind = owner, kind

    def remote(self, *args):
        self.owner.spawned += 1
        actor = self.kind(*args)
        return type(
            "Actor",
            (),
            {
                "__getattr__": lambda _, name: type(
                    "Method",
                    (),
                    {"remote": staticmethod(lambda *what: lambda: getattr(actor, name)(*what))},
                )()
            },
        )()


@pytest.fixture
def intake(task, tmp_path):
    """Return an intake with an episode, and its receiver."""
    intake = Intake(tmp_path / "run", task.spec, 49)
    intake.folder = record(Spool(tmp_path / "spool"), task.spec).close()
    return intake


def shards(task, monkeypatch, **errors):
    monkeypatch.setattr(replay_shards, "connect", lambda address: Here(**errors))
    return ReplayShards(task.spec, 100, shards=1)


def intake_into(replay):
    def insert(episode):
        observations = {"vectors": episode.observations["vectors"]}
        replay.insert_episode(observations, episode.actions, episode.rewards, episode.discounts)
        return "online"

    return insert


@pytest.mark.parametrize(
    "errors, message",
    [
        (
            dict(put=[exceptions.ObjectStoreFullError("full")]),
            "expected room in their processes and in Ray's store, got: full",
        ),
        (
            dict(put=[exceptions.OutOfDiskError("full")]),
            "expected room in their processes and in Ray's store",
        ),
        (dict(get=[task_error(MemoryError("for 3 GiB"))]), "expected room in their processes"),
        (dict(get=[exceptions.RaySystemError("no raylet")]), "expected room in their processes"),
        (dict(get=[exceptions.RayActorError()] * 11), "replay shards died 11 times"),
    ],
)
def test_a_replay_that_cannot_go_on_ends_the_run_and_refuses_no_episode(
    intake, task, monkeypatch, errors, message
):
    with pytest.raises(IngestError, match=message):
        intake.take(intake.folder, intake_into(shards(task, monkeypatch, **errors)))
    assert intake.folder.is_dir() and not intake.ids
    assert intake.take(intake.folder, intake_into(shards(task, monkeypatch))) == "online"


def test_what_a_shard_itself_refuses_is_refused(intake, task, monkeypatch):
    replay = shards(task, monkeypatch, get=[task_error(SpecError("episode of 200 transitions"))])
    assert intake.take(intake.folder, intake_into(replay)).startswith(
        "refused: episode a-1: episode of 200 transitions"
    )


def test_a_shard_whose_answer_is_lost_with_its_machine_is_made_again_and_holds_each_episode_once(
    intake, task, monkeypatch
):
    replay = shards(task, monkeypatch, get=[LOST])
    assert intake.take(intake.folder, intake_into(replay)) == "online"
    assert replay.died == 1 and replay.ray.spawned == 2 and len(replay) == 5
    replay.ray.to_raise["get"] = [LOST]
    assert len(replay.vectors()) == 5 and replay.ray.spawned == 3


@pytest.fixture
def readers(intake):
    intake.readers = readers = Readers.__new__(Readers)
    readers.ray, readers.died, readers._next, readers._pending = Here(), 0, 0, {}
    readers.reader_arguments = intake.spec, intake.max_transitions, False, None
    readers._actors = [readers._spawn()]
    return readers


def test_a_full_store_ends_no_reading_ahead_and_refuses_no_episode(intake, readers, monkeypatch):
    def begin(folder, sender):
        raise exceptions.ObjectStoreFullError("full")

    monkeypatch.setattr(readers, "_begin", begin)
    intake.prefetch([intake.folder])
    for error in (None, task_error(exceptions.OutOfDiskError("full")), exceptions.RpcError("cut")):
        if error:
            readers._pending, readers.ray = {intake.folder: (0, None)}, Here(get=[error])
        with pytest.raises(
            IngestError, match="(?s)a process of the ingest does not answer: .*Nothing is lost"
        ):
            intake.take(intake.folder, lambda episode: "online")
    assert intake.folder.is_dir() and not intake.ids


def test_a_reader_whose_answer_is_lost_is_replaced_and_the_episode_read(intake, readers):
    readers.ray.to_raise["get"] = [LOST]
    assert intake.take(intake.folder, lambda episode: "online") == "online" and readers.died == 1


def test_who_cannot_begin_is_not_tried_again_and_the_reason_is_told(
    intake, readers, task, monkeypatch
):
    message = "expected a process that starts, got one that failed .*(?s:.)*no module named 'mine'"
    error = at_once("no module named 'mine'")
    readers.ray.to_raise["get"] = [error]
    with pytest.raises(StartupError, match=message):
        intake.take(intake.folder, lambda episode: "online")
    replay = shards(task, monkeypatch, get=[error])
    with pytest.raises(StartupError, match=message):
        intake.take(intake.folder, intake_into(replay))
    assert not intake.ids and readers.died == replay.died == 0
    group, workers = LearnerGroup.__new__(LearnerGroup), RolloutWorkers.__new__(RolloutWorkers)
    group.ray, group.processes, group.calls, group.failures = Here(get=[error]), [], [], 0
    with pytest.raises(StartupError, match=message):
        group._call("normalise")
    workers.ray, workers.died, workers.pending = Here(get=[error]), 0, [None]
    with pytest.raises(StartupError, match=message):
        workers._answer(0)
    assert group.failures == workers.died == 0


def test_rollout_workers_that_a_cluster_has_no_room_for_end_the_run_in_words(monkeypatch):
    workers, waited = RolloutWorkers.__new__(RolloutWorkers), []
    workers.ray = Here()
    workers.placed = False
    workers.resources = {"num_cpus": 1.0, "num_gpus": 0.6}
    workers.workers = [FakeActor(workers.ray, dict).remote() for _ in range(3)]
    workers.ray.wait = lambda ready, num_returns, timeout: (
        waited.append((num_returns, timeout)) or (ready[:2], ready[2:])
    )
    monkeypatch.setattr(ray_cluster, "resources", lambda: {"CPU": 8.0, "GPU": 2.0})
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 6.0, "GPU": 0.8})
    with pytest.raises(
        RestartLimitError,
        match="rollout workers: expected room for 3 processes of 1 CPU, 0.6 GPU each within "
        "180 s; the cluster has 8 CPU, 2 GPU, of which 6 CPU, 0.8 GPU are free",
    ):
        workers.start(0, {})
    assert waited == [(3, 180.0)]


@pytest.mark.parametrize(
    "error, code",
    [
        (RecipeError("no such key"), REFUSED),
        (StartupError("no such module"), REFUSED),
        (RlinfError("diverged"), REFUSED),
        (RestartLimitError("no room"), 1),
        (IngestError("shards died"), 1),
    ],
)
def test_a_trainer_that_a_restart_would_mend_says_so_by_its_exit_code(
    tmp_path, monkeypatch, capsys, error, code
):
    def train(**_):
        raise type(error)(*error.args)

    monkeypatch.setattr("rlinf_core.cli.train.train_command", train)
    monkeypatch.setattr(sys, "argv", ["trainer", "demo", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("rlinf_core.cli.trainer", run_name="__main__")
    assert ended.value.code == code and f"rlinf: {error}" in capsys.readouterr().err
