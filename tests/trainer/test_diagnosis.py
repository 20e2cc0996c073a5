"""Faults that are planted into a run's replay are named; runs that learn show none."""

import json

import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RlinfError
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer import train as simulation
from rlinf_core.trainer.diagnosis import CHECKS, diagnose, read_evidence
from tests.algorithms.point import SPEC, STEPS, Points
from tests.trainer.test_simulators import points, recipe_of


def played(act, seeds, shaping=0.0):
    """Episodes of the points: (observations, actions, rewards, discounts) of each."""
    episodes = []
    for seed in seeds:
        env, rng = Points(1, shaping), np.random.default_rng(seed)
        vectors, actions, rewards, discounts = [env.reset([seed])["vectors"][0]], [], [], []
        while len(actions) < STEPS:
            action = act(env, rng)
            steps = env.step(action[None])
            actions.append(action)
            rewards.append(float(steps.reward[0]))
            discounts.append(1.0 - float(steps.terminated[0]))
            vectors.append(steps.next_observations["vectors"][0])
            if steps.terminated[0]:
                break
        episodes.append(
            [np.array(part, np.float32) for part in (vectors, actions, rewards, discounts)]
        )
    return episodes


def explores(env, rng):
    """Right more often than not."""
    return np.clip(env.expert()[0] * 0.6 + rng.normal(0, 0.5, 2), -0.95, 0.95).astype(np.float32)


def shows(env, rng):
    return (0.9 * env.expert()[0]).astype(np.float32)


def run_folder(
    folder,
    *,
    online=None,
    demonstrations=None,
    metrics=None,
    statuses=None,
    updates=2000,
    steps=2000,
    success=0.2,
    ids=(),
):
    """A run folder as a trainer leaves it."""
    recipe = load_recipe("sim_rlpd")
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text("defaults: sim_rlpd\n")
    (folder / "progress.jsonl").write_text(
        json.dumps({"event": "evaluation", "success": success, "env_steps": steps}) + "\n"
    )
    state = {}
    for name, episodes in (("online", online), ("demonstrations", demonstrations)):
        buffer = ReplayBuffer(SPEC, 5000)
        for vectors, actions, rewards, discounts in episodes or []:
            buffer.insert_episode({"vectors": vectors}, actions, rewards, discounts)
        state[name] = buffer.state_dict()
    checkpoint.save(
        folder / "checkpoints",
        "updates",
        {
            "learner": {"updates": updates},
            "data": state | {"steps": steps, "statuses": statuses or {}},
            "intake": {"ids": list(ids)},
            "progress": {"metrics": [metrics or {"q": 0.5}]},
        },
    )
    assert recipe.algorithm.name == "rlpd"
    return folder


@pytest.fixture(scope="module")
def healthy():
    return {"online": played(explores, range(40)), "demonstrations": played(shows, range(100, 110))}


def changed(episodes, **parts):
    """The same episodes with some parts replaced by a function of each."""
    names = ("vectors", "actions", "rewards", "discounts")
    return [
        [
            np.asarray(parts[name](episode), np.float32) if name in parts else episode[place]
            for place, name in enumerate(names)
        ]
        for episode in episodes
    ]


def unrewarded(episodes):
    return changed(
        episodes,
        rewards=lambda episode: 0 * episode[2],
        discounts=lambda episode: 0 * episode[3] + 1,
    )


FAULTS = {
    "reward_absent": lambda run: run | {"online": unrewarded(run["online"])},
    "reward_constant": lambda run: (
        run | {"online": changed(run["online"], rewards=lambda e: 0 * e[2] + 1.0)}
    ),
    "terminals_missing": lambda run: (
        run | {"online": changed(run["online"], discounts=lambda e: 0 * e[3] + 1)}
    ),
    "time_limit_as_end": lambda run: (
        run
        | {
            "online": run["online"][:20]
            + changed(
                played(
                    lambda env, rng: rng.uniform(-0.3, 0.3, 2).astype(np.float32), range(200, 230)
                ),
                discounts=lambda e: np.append(e[3][:-1], 0.0),
            )
        }
    ),
    "critic_diverges": lambda run: run | {"metrics": {"q": 4e4}},
    "demonstrations_small": lambda run: (
        run | {"demonstrations": changed(run["demonstrations"], actions=lambda e: e[1] / 10)}
    ),
    "demonstrations_clipped": lambda run: (
        run
        | {
            "demonstrations": changed(
                run["demonstrations"], actions=lambda e: np.clip(e[1] * 1000, -1, 1)
            )
        }
    ),
    "demonstrations_elsewhere": lambda run: (
        run
        | {"demonstrations": changed(run["demonstrations"], vectors=lambda e: e[0] * 0.001 + 7.0)}
    ),
    "demonstrations_fail": lambda run: (
        run | {"statuses": {"failed demonstration": 9, "demonstration": 1}}
    ),
    "actions_saturated": lambda run: (
        run | {"online": changed(run["online"], actions=lambda e: np.sign(e[1]))}
    ),
    "exploration_gone": lambda run: (
        run | {"online": changed(run["online"], actions=lambda e: 0 * e[1] + 0.3)}
    ),
    "episodes_refused": lambda run: (
        run
        | {
            "statuses": {"online": 30},
            "ids": [(f"e{n}", "refused: no" if n < 8 else "online") for n in range(38)],
        }
    ),
    "episodes_stale": lambda run: run | {"statuses": {"online": 20, "stale": 15}},
    "learner_behind": lambda run: run | {"updates": 40},
    "no_updates": lambda run: run | {"updates": 0},
    "no_finished_episode": lambda run: run | {"online": []},
    "observations_dead": lambda run: (
        run | {"online": changed(run["online"], vectors=lambda e: 0 * e[0] + 1)}
    ),
    "time_limit_short": lambda run: (
        run
        | {
            "online": played(
                lambda env, rng: rng.uniform(-0.3, 0.3, 2).astype(np.float32), range(300, 340)
            ),
            "demonstrations": [
                [
                    np.repeat(e[0][:1], STEPS + 1, 0),
                    np.repeat(e[1][:1], STEPS, 0),
                    np.eye(STEPS)[-1],
                    1 - np.eye(STEPS)[-1],
                ]
                for e in run["demonstrations"]
            ],
        }
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name, healthy, tmp_path):
    by_name = {
        finding.name: finding
        for finding in diagnose(
            read_evidence(run_folder(tmp_path / "run", **FAULTS[name](healthy)))
        )
    }
    assert name in by_name, by_name
    assert by_name[name].evidence
    assert by_name[name].remedy


def test_a_replay_without_fault_shows_none(healthy, tmp_path):
    evidence = read_evidence(run_folder(tmp_path / "run", **healthy))
    assert len(evidence.online) == 40
    assert len(evidence.demonstrations) == 10
    assert diagnose(evidence) == []


def test_a_full_ring_gives_its_episodes_in_their_order(tmp_path):
    """The oldest episode is partly overwritten, and left out."""
    buffer = ReplayBuffer(SPEC, 40)
    for number in range(9):
        buffer.insert_episode(
            {"vectors": np.full((7, 2), number)}, np.zeros((6, 2)), np.full(6, number), np.ones(6)
        )
    from rlinf_core.trainer.diagnosis import Episodes

    rewards = [episode[0] for episode in Episodes.of_replay(buffer.state_dict()).rewards]
    assert rewards[-5:] == [4, 5, 6, 7, 8]
    assert sorted(rewards) == rewards


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("dagger", []),
        *(
            pytest.param(*others, marks=pytest.mark.slow)
            for others in (("sac", []), ("rlpd", []), ("iql", []), ("sft", ["policy.kind=flow"]))
        ),
    ],
)
def test_a_run_that_learns_shows_no_fault(name, more, tmp_path):
    recipe = recipe_of(
        "sac",
        f"algorithm={{name: {name}, learning_rate: 0.001}}",
        "sft.steps=200",
        "sft.learning_rate=0.003",
        f"simulation.env_steps={1500 if name in ('sac', 'rlpd') else 600}",
        "simulation.evaluate_every=600",
        "simulation.evaluate_episodes=16",
        "collect.episodes=60",
        *more,
    )
    simulation.train(recipe, tmp_path, points)
    assert diagnose(read_evidence(tmp_path)) == []


def test_the_command_says_each_fault_and_what_to_do(healthy, tmp_path, capsys):
    run = run_folder(tmp_path / "run", **FAULTS["reward_absent"](healthy))
    assert main(["why", str(run), "--json", str(tmp_path / "out.json")]) == 1
    output = capsys.readouterr().out
    assert (
        "reward_absent: none of the 40 newest episodes has a reward above 0; the demonstrations "
        "have one" in output
    )
    assert "remedy: " in output
    assert "reward_absent" in json.loads((tmp_path / "out.json").read_text())
    well = run_folder(tmp_path / "well", **healthy)
    assert main(["why", str(well)]) == 0
    assert f"none of {len(CHECKS)} checks found a fault" in capsys.readouterr().out


def test_a_folder_that_is_no_run_or_has_not_begun_is_refused(tmp_path):
    with pytest.raises(RlinfError, match="expected the folder of a run, with recipe.yaml"):
        read_evidence(tmp_path)
    (tmp_path / "recipe.yaml").write_text("defaults: sim_rlpd\n")
    with pytest.raises(RlinfError, match="expected a started run"):
        read_evidence(tmp_path)


def test_help_in_most_time_steps_is_named(healthy, tmp_path):
    evidence = read_evidence(run_folder(tmp_path / "run", **healthy))
    evidence.operator_shares = [0.8] * 12
    assert [finding.name for finding in diagnose(evidence)] == ["helped_too_much"]
    evidence.operator_shares = [0.2] * 12
    assert diagnose(evidence) == []


def test_what_is_no_recording_in_the_inbox_is_passed_over(healthy, tmp_path):
    run = run_folder(tmp_path / "run", **healthy)
    for name in (".part-e1", "cut"):
        (run / "inbox" / name).mkdir(parents=True)
    (run / "inbox" / "notes.txt").write_text("by a person")
    (run / "inbox" / "gone").symlink_to(tmp_path / "nowhere")
    evidence = read_evidence(run)
    assert evidence.operator_shares == []
    assert diagnose(evidence) == []
