"""A run that goes on: what it knows of evaluations and policies since its last checkpoint, and
before.
"""

import shutil

from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.reports.curves import read_evaluations
from rlinf_core.rollouts.evaluate import EpisodeResult
from rlinf_core.trainer import checkpoint
from tests.trainer.test_run import ASYNC_PPO, run_of
from tests.trainer.test_stations import scalars


def judged(run, steps):
    run.data.steps = steps
    run.evaluator = lambda: [EpisodeResult(1, True, False, 1.0, 5)]
    run._evaluate()


def test_the_next_evaluation_is_ahead_however_much_a_turn_plays_and_none_is_forgotten(
    task, tmp_path
):
    run = run_of(task, tmp_path, "simulation.evaluate_every=2000")
    for steps, following in (
        (0, 2000),
        (4096, 6000),
        (8192, 10_000),
        (9000, 10_000),
        (10_000, 12_000),
    ):
        judged(run, steps)
        assert run.next_evaluation == following
    again = run_of(task, tmp_path, "simulation.evaluate_every=2000")
    assert [entry["env_steps"] for entry in read_evaluations(tmp_path)] == [
        0,
        4096,
        8192,
        9000,
        10_000,
    ]
    assert again.next_evaluation == 12_000


def test_what_was_evaluated_before_its_time_is_in_a_checkpoint(task, tmp_path):
    """The end of a run is such an evaluation, with an earlier checkpoint."""
    run = run_of(task, tmp_path, "simulation.evaluate_every=2000")
    judged(run, 2500)
    judged(run, 2500)
    assert (
        checkpoint.load(checkpoint.checkpoints(tmp_path / "checkpoints")[-1])["run"]["version"]
        == run.version
        == 2
    )


def test_policies_since_the_checkpoint_are_as_old_as_the_learner_that_goes_on(task, tmp_path):
    """Episodes of stations with these policies are used for training."""
    run = run_of(task, tmp_path, algorithm=ASYNC_PPO)
    for updates in (3, 5):
        run.learner.updates = updates
        run.publish()
    run.save()
    for updates in (5, 9):
        run.learner.updates = updates
        run.publish()
    (tmp_path / "policies" / policy_name(5)).write_bytes(b"damaged")
    again = run_of(task, tmp_path, algorithm=ASYNC_PPO)
    assert again.updates == 5 and again.version == 5
    assert again.data.versions == {1: 3, 2: 5, 3: 5, 4: 5}


def test_copies_of_policies_under_other_versions_move_no_version_and_are_not_written_over(
    task, tmp_path
):
    run = run_of(task, tmp_path, algorithm=ASYNC_PPO)
    run.publish()
    copies = [tmp_path / "policies" / name for name in (policy_name(20261129), policy_name(2))]
    for copy in copies:
        shutil.copy(tmp_path / "policies" / policy_name(1), copy)
    again = run_of(task, tmp_path, algorithm=ASYNC_PPO)  # that died before its first checkpoint
    assert again.version == 1
    again.publish()
    assert again.version == 3, "2 is the name of somebody's copy"
    again.save()
    assert run_of(task, tmp_path, algorithm=ASYNC_PPO).version == 3
    assert all(
        copy.read_bytes() == (tmp_path / "policies" / policy_name(1)).read_bytes()
        for copy in copies
    )


def test_curves_of_steps_that_come_again_are_shown_once(task, tmp_path):
    run = run_of(task, tmp_path, "simulation.evaluate_every=2000")
    judged(run, 2500)
    for steps in (2500, 3000, 4000):
        run.progress.write(steps, {"steps": steps})
    run.progress.close()
    again = run_of(task, tmp_path, "simulation.evaluate_every=2000")
    for steps in (2700, 3100):
        again.progress.write(steps, {"steps": -steps})
        again.progress.close()  # as after what a disk did not take: of this life all is shown
    assert scalars(tmp_path, "data/steps") == [(2500, 2500.0), (2700, -2700.0), (3100, -3100.0)]
    assert scalars(tmp_path, "eval/success") == [(2500, 1.0)]
