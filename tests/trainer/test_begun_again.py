"""Runs that begin where others were: what is kept of those, what is counted anew, and what is
refused.
"""

import numpy as np
import pytest
import ray
import torch

from rlinf_core.algorithms import algorithm
from rlinf_core.core.errors import IngestError, RecipeError, RlinfError
from rlinf_core.data.replay import MAX_ORIGIN
from rlinf_core.policies import make_policy
from rlinf_core.policies.normalization import STD_FLOOR, Normalisation
from rlinf_core.policies.policy_folder import newest_policy
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.policies.torch_device import restore
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.recipes.station import station_task
from rlinf_core.reports.curves import read_evaluations
from rlinf_core.rollouts.collect import ChunkRollouts
from rlinf_core.rollouts.types import DEMONSTRATION, IMAGINED, TRAIN, Experience, Trajectory
from rlinf_core.trainer import train as training
from rlinf_core.trainer.data import make_data
from rlinf_core.trainer.distributed import readers
from rlinf_core.trainer.distributed.readers import Readers
from rlinf_core.trainer.distributed.rollout_workers import RolloutWorkers
from rlinf_core.trainer.governor import make_governor
from rlinf_core.trainer.learner_setup import initial_policy
from rlinf_core.trainer.sources.recordings import Intake
from rlinf_core.trainer.train import train
from tests.algorithms.point import SPEC, Points, points

pytestmark = pytest.mark.timed

SMALL = (
    "policy.hidden=[16]",
    "simulation.environments=2",
    "simulation.evaluate_every=100",
    "simulation.evaluate_episodes=2",
    "collect.episodes=2",
)
SFT = ("algorithm={name: sft, steps: 12, batch_size: 16}", *SMALL)
PPO = (
    "algorithm={name: ppo, chunks: 16, epochs: 1}",
    "policy={kind: gaussian, hidden: [16]}",
    "simulation.environments=2",
    "simulation.env_steps=128",
    "simulation.evaluate_every=1000",
    "simulation.evaluate_episodes=2",
)


def deviations(run):
    policy = load_policy(max((run / "policies").iterdir()), SPEC)
    return [part.std for part in policy.modules() if isinstance(part, Normalisation)]


def test_sft_from_another_run_has_its_own_steps(tmp_path):
    train(load_recipe("sim_sft", [*SFT]), tmp_path / "first", points)
    train(
        load_recipe("sim_sft", [*SFT, f"simulation.initial_policy={tmp_path / 'first'}"]),
        tmp_path / "second",
        points,
    )
    one, two = (
        load_policy(max((tmp_path / name / "policies").iterdir()), SPEC)
        for name in ("first", "second")
    )
    assert any(
        not torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True)
    ), "it learned"
    assert [read_evaluations(tmp_path / name)[-1]["env_steps"] for name in ("first", "second")] == [
        12,
        12,
    ]


def test_offline_rl_from_another_run_learns_on(tmp_path):
    """The learning rate falls to 0 within the steps of one run, not of both."""
    iql = ("algorithm={name: iql, steps: 12, batch_size: 16, critic_hidden: [16]}", *SMALL)
    train(load_recipe("sim_iql", [*iql]), tmp_path / "first", points)
    train(
        load_recipe("sim_iql", [*iql, f"simulation.initial_policy={tmp_path / 'first'}"]),
        tmp_path / "second",
        points,
    )
    one, two = (
        load_policy(max((tmp_path / name / "policies").iterdir()), SPEC)
        for name in ("first", "second")
    )
    moved = [
        (p - q).abs().max().item() for p, q in zip(one.parameters(), two.parameters(), strict=True)
    ]
    assert max(moved) > 1e-4
    assert [entry["env_steps"] for entry in read_evaluations(tmp_path / "second")][-1] == 12


def test_a_checkpoint_with_other_parts_says_which_settings_made_them(tmp_path):
    sac = (
        "algorithm={name: sac, critic_hidden: [16], batch_size: 16}",
        "simulation.env_steps=40",
        *SMALL,
    )
    train(load_recipe("sim_sac", [*sac]), tmp_path / "run", points)
    with pytest.raises(
        RecipeError,
        match="algorithm: expected a learner of .*, as in the run's checkpoint, got one of "
        ".*averaged",
    ):
        train(load_recipe("sim_sac", [*sac, "algorithm.ema_rate=0.01"]), tmp_path / "run", points)


def test_noise_of_another_kind_of_device_begins_anew():
    one, two = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    restore(two, one.get_state(), seed=9)
    assert torch.equal(torch.rand(3, generator=one), torch.rand(3, generator=two))
    restore(two, torch.zeros(16, dtype=torch.uint8), seed=9)  # as CUDA's are
    assert torch.equal(
        torch.rand(3, generator=two), torch.rand(3, generator=torch.Generator().manual_seed(9))
    )


def test_demonstrations_of_what_learns_from_nothing_else_may_fill_the_replay():
    for overrides, capacity in (
        (["replay.capacity=60000"], 60_000),
        (["replay.capacity=600"], 600),
    ):
        recipe = load_recipe("sim_iql", [*overrides, "policy.hidden=[8]"])
        data = make_data(recipe, initial_policy(recipe, SPEC, None), make_governor(recipe, 10))
        assert data.demonstrations.capacity == capacity
    recipe = load_recipe("sim_rlpd", ["replay.capacity=60000", "policy.hidden=[8]"])
    assert (
        make_data(
            recipe, initial_policy(recipe, SPEC, None), make_governor(recipe, 10)
        ).demonstrations.capacity
        == 50_000
    )


def test_the_first_episode_with_an_expert_is_the_first_that_is_no_demonstration():
    recipe = load_recipe(
        "sim_dagger", ["policy.hidden=[8]", "algorithm.beta=0.5", "algorithm.beta_decay=0.9"]
    )
    data = make_data(recipe, initial_policy(recipe, SPEC, None), make_governor(recipe, 10))
    zeros = np.zeros((3, SPEC.action.dim), np.float32)
    for mode, fraction in ((DEMONSTRATION, 0.5), (DEMONSTRATION, 0.5), (TRAIN, 0.45)):
        data.insert(
            Trajectory(
                {"vectors": np.zeros((4, SPEC.vector_size), np.float32)},
                zeros,
                np.zeros(3),
                np.ones(3),
                True,
                mode=mode,
                sources=["policy"] * 3,
            ),
            0,
        )
        assert data.rollout_length()["expert_fraction"] == pytest.approx(fraction)


def test_a_policy_that_a_person_has_named_is_no_newer_version(tmp_path):
    (tmp_path / "policies").mkdir()
    for name in (
        "policy-00000002.safetensors",
        "policy-00000012.safetensors",
        "policy-best.safetensors",
    ):
        (tmp_path / "policies" / name).write_bytes(b"")
    assert newest_policy(tmp_path).name == "policy-00000012.safetensors"
    for path in (tmp_path / "policies").glob("policy-0*"):
        path.unlink()
    assert newest_policy(tmp_path).name == "policy-best.safetensors"


def test_a_policy_that_rl_improves_goes_on_to_see_as_it_has_learned_to(tmp_path):
    train(load_recipe("sim_ppo", [*PPO]), tmp_path / "first", points)
    train(
        load_recipe("sim_ppo", [*PPO, f"simulation.initial_policy={tmp_path / 'first'}"]),
        tmp_path / "second",
        points,
    )
    for one, two in zip(
        deviations(tmp_path / "first"), deviations(tmp_path / "second"), strict=True
    ):
        assert torch.allclose(one, two, atol=1e-6) and not torch.equal(one, torch.ones_like(one))


def rollouts_of(policy, count=1):
    """Return rollouts of an observation whose second number hardly varies."""
    played = [
        ChunkRollouts(Points(4), policy, number).play(chunks=20).rollouts[0]
        for number in range(count)
    ]
    for rollout in played:
        rollout.observations["vectors"][..., 1] = (
            2.0 + 0.001 * rollout.observations["vectors"][..., 1]
        )
    return played


def test_what_hardly_varies_is_scaled_after_an_update_as_before_the_first():
    recipe = load_recipe("sim_ppo", ["policy.hidden=[8]"])
    policy = initial_policy(recipe, SPEC, None)
    learner = algorithm("ppo").Learner(policy, recipe.algorithm, 0)
    data, again = (make_data(recipe, policy, make_governor(recipe, 10)) for _ in range(2))
    first, *others = rollouts_of(policy, 3)
    data.put(Experience(rollouts=[first]), 0)
    learner.fit_normalisation(data.normalisation())
    assert (data.waiting, data.rounds, data.steps) == ([], 0, 0), "it is not learned from"
    fitted = policy.encoder.std.clone()
    assert fitted[1].item() == pytest.approx(0.1, rel=0.01), "a twentieth of how large it is"
    for rollout in others:
        data.put(Experience(rollouts=[rollout]), 0)
        data.batch()
        data.after_update(learner)
        assert policy.encoder.std[1].item() == pytest.approx(fitted[1].item(), rel=0.01)
    assert torch.equal(policy.encoder.std, learner.value.encoder.std)
    assert policy.encoder.std[0].item() == pytest.approx(
        data.moments.var[0].sqrt().item() + STD_FLOOR
    ), "which varies"
    for older in (False, True):
        state = data.state_dict()
        if older:  # it does not say, and its policy sees without
            del state["floors"]
        again.load_state_dict(state)
        again.put(Experience(rollouts=rollouts_of(policy)), 0)
        again.batch()
        again.after_update(learner)
        assert (policy.encoder.std[1].item() > 0.09) is not older
        assert again.state_dict()["floors"] is not older, "and so on"


@pytest.mark.parametrize(
    "before, is_normalised",
    [("run", "as inherited"), ("file", "as the policy"), ("blind", "by what came")],
)
def test_critics_of_a_policy_that_rl_improves_see_as_those_before_or_as_it_does(
    tmp_path, before, is_normalised
):
    named = tmp_path if before == "run" else tmp_path / "policy.safetensors"
    recipe = load_recipe("sim_ppo", ["policy.hidden=[8]", f"simulation.initial_policy={named}"])
    policy = make_policy(SPEC, recipe.policy)
    policy.encoder.set_statistics(np.full(2, 0.1), np.full(2, 3.0))
    learner = algorithm("ppo").Learner(policy, recipe.algorithm, 0)
    value = learner.value.encoder
    value.set_statistics(np.full(2, 0.2), np.full(2, 7.0))
    if before == "blind":  # one that normalises nothing
        policy.modules = lambda: iter(())
    data = make_data(recipe, policy, make_governor(recipe, 10))
    data.put(Experience(rollouts=rollouts_of(policy)), 0)
    data.batch()
    data.after_update(learner)
    expected = {
        "as inherited": 7.0,
        "as the policy": 3.0,
        "by what came": data.moments.var[0].sqrt().item(),
    }[is_normalised]
    assert value.std[0].item() == pytest.approx(expected + STD_FLOOR, rel=1e-5)


@pytest.mark.parametrize(
    "change, message",
    [
        ("seed=3", "seed: expected 0, the value of the run in .*, got 3"),
        ("policy.hidden=[8]", r"policy: expected .*16.* got .*8"),
        ("replay.capacity=77", "replay.capacity: expected .* got 77"),
        (
            "simulation.initial_policy=runs/x",
            "simulation.initial_policy: expected none, the value of the run in .* got runs/x",
        ),
        (
            "algorithm={name: crossq, batch_size: 16, critic_hidden: [16]}",
            "algorithm.name: expected sac, .* got crossq",
        ),
    ],
)
def test_a_run_goes_on_with_what_it_was_begun_with(tmp_path, change, message):
    sac = (
        "algorithm={name: sac, critic_hidden: [16], batch_size: 16}",
        "simulation.env_steps=40",
        *SMALL,
    )
    train(load_recipe("sim_sac", [*sac]), tmp_path / "run", points)
    before = (tmp_path / "run/recipe.yaml").read_text()
    with pytest.raises(RecipeError, match=message):
        train(load_recipe("sim_sac", [*sac, change]), tmp_path / "run", points)
    assert (tmp_path / "run/recipe.yaml").read_text() == before
    assert (
        train(load_recipe("sim_sac", [*sac, "simulation.env_steps=80"]), tmp_path / "run", points)[
            "env_steps"
        ]
        == 80
    )


def test_a_run_that_was_through_is_not_judged_again(tmp_path):
    for steps in (40, 40, 80):
        sac = (
            "algorithm={name: sac, critic_hidden: [16], batch_size: 16}",
            f"simulation.env_steps={steps}",
            *SMALL,
        )
        last = train(load_recipe("sim_sac", [*sac]), tmp_path, points)
        written = read_evaluations(tmp_path)
        assert [entry["env_steps"] for entry in written] == [0, 40] + [80] * (steps == 80)
        assert last == {
            key: value for key, value in written[-1].items() if key not in ("event", "time")
        }


def test_rollouts_that_wait_are_as_many_after_a_resume():
    recipe = load_recipe(
        "sim_dapo",
        [
            "algorithm.group=2",
            "simulation.environments=4",
            "placement.workers=2",
            "policy={kind: gaussian, hidden: [8]}",
        ],
    )
    policy = initial_policy(recipe, SPEC, None)
    one, two = (make_data(recipe, policy, make_governor(recipe, 10)) for _ in range(2))
    one.rounds = 3
    two.load_state_dict(one.state_dict())
    assert two.rounds == 3
    for rollouts in ([object()], [], [object(), object()]):
        two.put(Experience(rollouts=rollouts), 0)
    assert two.rounds == 5 and len(two.waiting) == 3, "a round has a rollout of each worker"


def test_workers_of_a_run_that_goes_on_play_scenes_of_their_own():
    class Players(RolloutWorkers):
        def __init__(self):
            self.recipe = load_recipe("sim_ppo", ["placement.workers=2"])
            self.resources = {}
            self.worker_arguments = ()
            self.died = 0
            self.resumes = 0
            self.spawned = 0
            self.seeds_and_scenes, self.workers, self.editions = [], [0, 1], [0, 0]
            self.ray = self

        def remote(self, *what, **_):
            self.seeds_and_scenes.append(what) if len(what) > 1 else None
            return self

        __call__ = remote

        def kill(self, _):
            pass

    players = Players()
    for _ in range(2):
        players._worker()
    players.restart_workers(1)
    players.restart_workers(2)
    assert (
        len({seed for seed, _ in players.seeds_and_scenes})
        == len({scene for _, scene in players.seeds_and_scenes})
        == 6
    )


def test_stations_beyond_those_that_are_told_apart_are_counted_as_the_last():
    recipe = load_recipe("sim_sac", ["policy.hidden=[8]"])
    data = make_data(recipe, initial_policy(recipe, SPEC, None), make_governor(recipe, 10))
    for number in range(MAX_ORIGIN + 5):
        data.stations[f"s{number}"] = {"episodes": 1, "steps": 1}
    counts = data.counts()
    assert counts[f"s{MAX_ORIGIN + 4}/sampled"] == counts[f"s{MAX_ORIGIN - 1}/sampled"] == 0


def test_a_real_robot_among_several_is_not_simulated():
    robots = (
        "embodiments={one: {robot: franka_sim, task: reach}, two: {robot: franka_twin, task: "
        "peg_insertion}}"
    )
    with pytest.raises(
        RecipeError,
        match="embodiments.two: expected a simulator .* got 'franka_twin', whose driver is",
    ):
        check_recipe(
            load_recipe(
                "sim_embodiments", ["algorithm={name: sac}", "simulation={environments: 1}", robots]
            )
        )


class Lost:
    """Ray, as it answers for a process that was killed as memory ran out."""

    exceptions = ray.exceptions

    def __init__(self, error):
        self.error = error

    def get(self, _):
        raise self.error


def test_a_process_that_is_killed_for_memory_is_replaced_and_one_that_is_not_heard_refuses_no_episode(
    tmp_path,
):
    workers, replaced = RolloutWorkers.__new__(RolloutWorkers), []
    workers.ray = Lost(ray.exceptions.OutOfMemoryError("m"))
    workers.died = 0
    workers.workers = [0]
    workers.pending = [0]
    workers._worker, workers._begin = lambda: replaced.append(0), lambda worker: None
    workers.editions = [0]
    with pytest.raises(RlinfError, match="rollout workers died"):
        workers._answer(0)
    assert len(replaced) > 1
    readers = Readers.__new__(Readers)
    readers.ray, readers._pending = Lost(ray.exceptions.RpcError("cut")), {tmp_path: (0, None)}
    with pytest.raises(IngestError, match="a process of the ingest does not answer"):
        readers.read(tmp_path, "station_a")
    readers.ray = Lost(ray.exceptions.RayTaskError("f", "tb", MemoryError("m")))
    readers._pending = {tmp_path: (0, None)}
    with pytest.raises(MemoryError):  # which is none on the episode, either
        readers.read(tmp_path, "station_a")


def test_what_a_power_cut_left_of_a_line_ends_no_report_and_no_run(tmp_path):
    sac = (
        "algorithm={name: sac, critic_hidden: [16], batch_size: 16}",
        "simulation.env_steps=40",
        *SMALL,
    )
    train(load_recipe("sim_sac", [*sac]), tmp_path, points)
    file = tmp_path / "progress.jsonl"
    text = file.read_text()
    file.write_text(text + '{"event": "evaluation", "env_st')
    assert [entry["env_steps"] for entry in read_evaluations(tmp_path)] == [0, 40]
    train(load_recipe("sim_sac", [*sac, "simulation.env_steps=80"]), tmp_path, points)
    assert file.read_text().startswith(text) and len(file.read_text().splitlines()) == 3


def test_an_older_replay_owes_updates_for_all_of_its_time_steps():
    """Checkpoints of one robot did not say whether all robots had been met."""
    recipe = load_recipe(
        "sim_sac", ["policy.hidden=[8]", "replay.capacity=100", "simulation.start_steps=0"]
    )
    one, two = (
        make_data(recipe, initial_policy(recipe, SPEC, None), make_governor(recipe, 10))
        for _ in range(2)
    )
    observations = {"vectors": np.zeros((10, SPEC.vector_size), np.float32)}
    actions = np.zeros((9, SPEC.action.dim), np.float32)
    one.insert(Trajectory(observations, actions, np.zeros(9), np.ones(9), False), 0)
    one.steps = 9
    state = one.state_dict()
    del state["met"], state["unearned"]
    two.load_state_dict(state)
    assert two.due(0, None) == one.due(0, None) == 9 * recipe.simulation.updates_per_step > 0


def test_what_was_imagined_is_there_after_a_resume():
    recipe = load_recipe("sim_sac", ["policy.hidden=[8]", "replay.capacity=100", "world.share=0.5"])
    one, two = (
        make_data(recipe, initial_policy(recipe, SPEC, None), make_governor(recipe, 10))
        for _ in range(2)
    )
    observations = {"vectors": np.ones((10, SPEC.vector_size), np.float32)}
    actions = np.zeros((9, SPEC.action.dim), np.float32)
    one.insert(Trajectory(observations, actions, np.zeros(9), np.ones(9), False, IMAGINED), 0)
    two.load_state_dict(one.state_dict())
    assert len(two.imagined) == len(one.imagined) == 9 and two.counts()["imagined"] == 9.0
    assert (two.imagined.vectors() == 1.0).all()
    plain = load_recipe("sim_sac", ["policy.hidden=[8]", "replay.capacity=100"])
    other = make_data(plain, initial_policy(plain, SPEC, None), make_governor(plain, 10))
    other.load_state_dict(one.state_dict())
    assert len(other.imagined) == 0 and "imagined" not in other.counts()
    assert (
        other.insert(Trajectory(observations, actions, np.zeros(9), np.ones(9), False, IMAGINED), 0)
        == "not used for training"
    )


def test_readers_read_as_the_intake_would(monkeypatch, tmp_path):
    class Stub(tuple):
        def __new__(cls, *arguments):
            return super().__new__(cls, arguments)

    monkeypatch.setattr(readers, "Readers", Stub)
    intake = Intake(tmp_path, SPEC, 77, True, load_recipe("sim_ppo").policy)
    recipe = load_recipe("demo", ["placement={ingest: 3, ray: 'local:7'}"])
    assert training._readers(recipe, intake) == (
        3,
        "local:7",
        SPEC,
        77,
        True,
        intake.rollouts_of,
    )
    assert training._readers(load_recipe("demo"), intake) is None


def test_a_network_with_lists_begins_from_the_policy_of_another_run(tmp_path):
    """YAML gives tuples, and the JSON of a policy's file gives lists."""
    small = "{resize_imgs_with_padding: [32, 32], vlm_config: {vision_config: {image_size: 32}}}"
    camera = ["station.observe_cameras=[front]", "station.image_size=[32,32]"]
    recipe = load_recipe("sim_vla", [*camera, f"policy={{kind: smolvla, network: {small}}}"])
    folder = tmp_path / "first"
    (folder / "policies").mkdir(parents=True)
    spec = station_task(recipe).spec
    policy = make_policy(spec, recipe.policy)
    save_policy(policy, folder / "policies/policy-00000001.safetensors", version=1)
    again = initial_policy(recipe, spec, folder)
    assert again.config == recipe.policy
    assert torch.equal(next(again.parameters()), next(policy.parameters()))
