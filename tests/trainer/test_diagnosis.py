"""Faults that are planted into a run's replay are named; runs that learn show none. Each check
speaks from its threshold on, with the figures, and not before.
"""

import json
import os
from collections import Counter

import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RlinfError
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.episodes.spool import Spool
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer import checkpoint, diagnosis
from rlinf_core.trainer import train as simulation
from rlinf_core.trainer.diagnosis import CHECKS, Episodes, Evidence, diagnose, read_evidence
from tests.algorithms.point import SPEC, STEPS, Points
from tests.messages import record
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
    """Return a run folder as a trainer leaves it."""
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
    """Return the same episodes with some parts replaced by a function of each."""
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
    rewards = [episode[0] for episode in Episodes.from_replay(buffer.state_dict()).rewards]
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


def episode(steps=5, reward=0.0, ended=False, actions=0.5, vectors=None):
    """(vectors, actions, rewards, discounts); the reward is that of the last time step."""
    times = np.arange(steps)
    return (
        np.stack([np.arange(steps + 1.0)] * 2, 1) if vectors is None else np.asarray(vectors),
        np.broadcast_to(np.asarray(actions, float).reshape(-1, 1), (steps, 1))
        if np.ndim(actions) < 2
        else np.asarray(actions, float),
        np.where(times == steps - 1, reward, 0.0),
        np.where((times == steps - 1) & ended, 0.0, 1.0),
    )


def replay_of(*episodes):
    return Episodes(*(list(parts) for parts in zip(*episodes, strict=True)))


RLPD = load_recipe("sim_rlpd", ["algorithm.discount=0.9", "simulation.updates_per_step=2"])


def evidence_of(online=(), demonstrations=(), success=0.2, recipe=RLPD, statuses=None, **figures):
    return Evidence(
        recipe,
        [{"success": success}],
        statuses=Counter(statuses),
        demonstrations=replay_of(*demonstrations),
        online=replay_of(*online),
        **{"updates": 1} | figures,
    )


def rewarded(*rewards):
    """Return an episode of these rewards."""
    vectors, actions, _, discounts = episode(len(rewards))
    return vectors, actions, np.array(rewards), discounts


def begun_at(*first):
    """Return an episode whose first observation is this."""
    return episode(vectors=np.repeat([first], 6, 0))


def moves(*actions):
    return episode(len(actions), actions=np.array(actions))


ROW = ["1"] * 7 + ["0"] * 3
FULL = [0.98 if letter == "1" else 0.0 for letter in ROW]
STILL = [[0.3, -0.3]] * 5
ZEROS = [(0.0, 0.0)] * 10
AT_LIMIT, QUICK = episode(6, ended=True), episode(3)
SLOW, SHORT = episode(20), episode(12)

# the check, what it is to speak of and its words, and what is just not enough
THRESHOLDS = [
    (
        "reward_absent",
        dict(online=[episode(reward=-1.0)] * 10),
        "none of the 10 newest episodes has a reward above 0",
        [
            dict(online=[episode()] * 9),
            dict(online=[episode()] * 9 + [rewarded(0.0, 0.1, 0.0)]),
        ],
    ),
    (
        "reward_absent",
        dict(online=[episode()] * 10, demonstrations=[episode()]),
        "none of the 10 newest episodes has a reward above 0; nor have the demonstrations",
        [],
    ),
    (
        "reward_absent",
        dict(online=[episode()] * 10, demonstrations=[episode(), episode(reward=0.5)]),
        "none of the 10 newest episodes has a reward above 0; the demonstrations have one",
        [],
    ),
    (
        "reward_constant",
        dict(online=[rewarded(-2.5, -2.5)] * 10),
        "every time step of 10 episodes has the reward -2.5",
        [
            dict(online=[rewarded(1.0, 1.0)] * 9),
            dict(online=[rewarded(0.0, 0.0)] * 10),
            dict(online=[rewarded(1.0, 1.0)] * 9 + [rewarded(1.0, 0.9)]),
        ],
    ),
    (
        "terminals_missing",
        dict(online=[episode(reward=0.5)] * 10 + [episode(ended=True)]),
        "10 episodes end with a reward, and in none the task ended (discount 0): the critic counts "
        "on more after success",
        [
            dict(online=[episode(reward=0.5)] * 9 + [episode()] * 9),
            dict(online=[episode(reward=0.5)] * 9 + [episode(reward=0.5, ended=True)]),
        ],
    ),
    (
        "time_limit_as_end",
        dict(online=[AT_LIMIT] * 12 + [QUICK] * 28),
        "12 of 40 episodes end without a reward after exactly 6 steps, each as if the task had "
        "ended (discount 0)",
        [
            dict(online=[AT_LIMIT] * 11 + [QUICK] * 29),
            dict(online=[AT_LIMIT] * 9),
            dict(online=[AT_LIMIT] * 9 + [episode(6, reward=1.0, ended=True)] * 9),
            dict(online=[AT_LIMIT] * 12 + [episode(6)]),
        ],
    ),
    (
        "time_limit_as_end",
        dict(online=[AT_LIMIT] * 10),
        "10 of 10 episodes end without a reward after exactly 6 steps, each as if the task had "
        "ended (discount 0)",
        [],
    ),
    (
        "actions_saturated",
        dict(online=[moves(*[0.0] * 10)] * 10 + [moves(*FULL)] * 50, success=0.89),
        "70% of the policy's actions have the largest possible value",
        [
            dict(online=[moves(*FULL)] * 9),
            dict(online=[moves(*FULL)] * 10, success=0.9),
            dict(online=[moves(*FULL)] * 9 + [moves(*FULL[1:])]),
        ],
    ),
    (
        "actions_saturated",
        dict(online=[moves(*(-1.0 * np.array(FULL)))] * 10),
        "70% of the policy's actions have the largest possible value",
        [],
    ),
    (
        "demonstrations_small",
        dict(demonstrations=[moves(*[[-0.19, 0.1]] * 50)] * 2),
        "99 % of the demonstrated actions are below 0.19 of the largest step",
        [
            dict(demonstrations=[moves(*[[-0.2, 0.1]] * 50)] * 2),
            dict(demonstrations=[moves(*[[0.1, 0.1]] * 98, *[[1.0, 0.1]] * 2)]),
        ],
    ),
    (
        "demonstrations_clipped",
        dict(demonstrations=[moves(*[[-0.98, 1.0]] * 8, *[[0.9, 1.0]] * 2)]),
        "at least 80% of the demonstrated actions of every dimension equal the largest step: they "
        "were clipped",
        [dict(demonstrations=[moves(*[[-0.98, 1.0]] * 7, *[[0.9, 1.0]] * 3)])],
    ),
    (
        "demonstrations_elsewhere",
        dict(online=[begun_at(0.0, 0.0, 0.005)] * 10, demonstrations=[begun_at(0.0, 9.0, 0.0)] * 3),
        "2 of 3 observed numbers begin elsewhere in the demonstrations; number 1 at 9 instead of 0",
        [
            dict(online=[begun_at(0.005)] * 9, demonstrations=[begun_at(0.0)] * 3),
            dict(online=[begun_at(0.005)] * 10, demonstrations=[begun_at(0.0)] * 2),
            dict(online=[begun_at(0.003)] * 10, demonstrations=[begun_at(0.0)] * 3),
            dict(online=[begun_at(9.03)] * 10, demonstrations=[begun_at(9.0)] * 3),
            dict(online=[begun_at(-9.03)] * 10, demonstrations=[begun_at(-9.0)] * 3),
            dict(
                online=[begun_at(5.0)] * 99 + [begun_at(-1.0)], demonstrations=[begun_at(0.0)] * 3
            ),
            dict(
                online=[begun_at(-5.0)] * 99 + [begun_at(0.0)], demonstrations=[begun_at(0.0)] * 3
            ),
            dict(online=[begun_at(3.0), begun_at(5.0)] * 5, demonstrations=[begun_at(0.5)] * 3),
            dict(online=[begun_at(0.5)] * 10, demonstrations=[begun_at(3.0), begun_at(5.0)] * 2),
        ],
    ),
    (
        "demonstrations_elsewhere",
        dict(online=[begun_at(-1.0), begun_at(1.0)] * 5, demonstrations=[begun_at(5.0)] * 3),
        "1 of 1 observed numbers begin elsewhere in the demonstrations; number 0 at 5 instead of 0",
        [],
    ),
    (
        "demonstrations_fail",
        dict(statuses={"failed demonstration": 3, "demonstration": 1}),
        "3 demonstrations failed and 1 succeeded",
        [
            dict(statuses={"failed demonstration": 2}),
            dict(statuses={"failed demonstration": 4, "demonstration": 2}),
            dict(statuses={"demonstration": 4}),
        ],
    ),
    (
        "demonstrations_fail",
        dict(statuses={"failed demonstration": 3}),
        "3 demonstrations failed and 0 succeeded",
        [],
    ),
    (
        "critic_diverges",
        dict(online=[episode(), episode(reward=-2.0)], metrics={"q": -31.0}),
        "the critic predicts -31 on average; rewards of at most 2 over 5 steps give at most 10",
        [
            dict(online=[episode(reward=2.0)], metrics={"q": 30.0}),
            dict(online=[episode(reward=2.0)], metrics={"loss": 31.0}),
            dict(online=[episode(40, reward=2.0)], metrics={"q": 59.0}),
            dict(online=[episode(reward=0.1)], metrics={"q": 10.0}),
            dict(online=[episode()], demonstrations=[episode(reward=2.0)], metrics={"q": 30.0}),
            dict(demonstrations=[episode(reward=2.0)], metrics={"q": 31.0}),
        ],
    ),
    (
        "critic_diverges",
        dict(online=[episode(40, reward=2.0)], metrics={"q": 61.0}),
        "the critic predicts 61 on average; rewards of at most 2 over 40 steps give at most 20",
        [],
    ),
    (
        "critic_diverges",
        dict(online=[episode(reward=0.1)], metrics={"q": 10.5}),
        "the critic predicts 10.5 on average; rewards of at most 0.1 over 5 steps give at most 0.5",
        [],
    ),
    (
        "exploration_gone",
        dict(
            online=[moves(*[[-1.0, 1.0], [1.0, -1.0]])] * 10 + [episode(actions=STILL)] * 20,
            success=0.49,
        ),
        "the policy's actions vary by at most 0.000 of the largest step, at 49% success",
        [
            dict(online=[episode(actions=STILL)] * 9),
            dict(online=[episode(actions=STILL)] * 10, success=0.5),
            dict(online=[moves([0.0, -0.02], [0.0, 0.02])] * 10),
        ],
    ),
    (
        "learner_behind",
        dict(updates=499, steps=1000, success=0.89),
        "0.50 updates per time step, expected 2",
        [
            dict(updates=500, steps=1000),
            dict(updates=499, steps=999),
            dict(updates=499, steps=1000, success=0.9),
            dict(updates=1, steps=1000, recipe=load_recipe("sim_ppo")),
        ],
    ),
    (
        "episodes_stale",
        dict(statuses={"stale": 5, "online": 20}),
        "5 of 25 episodes came from a policy that was too old and were left out",
        [
            dict(statuses={"stale": 4}),
            dict(statuses={"stale": 5, "online": 21}),
            dict(statuses={"online": 5}),
        ],
    ),
    (
        "episodes_refused",
        dict(statuses={"refused": 3, "online": 27}),
        "3 of 30 episodes were refused",
        [
            dict(statuses={"refused": 2}),
            dict(statuses={"refused": 3, "online": 28}),
            dict(statuses={"online": 5}),
        ],
    ),
    (
        "helped_too_much",
        dict(operator_shares=[0.25, 0.75] * 5),
        "a person commanded in 50% of the time steps of the newest 10 recordings",
        [dict(operator_shares=[0.75] * 9), dict(operator_shares=[0.25, 0.75] * 5 + [0.25])],
    ),
    (
        "time_limit_short",
        dict(
            online=[SLOW] * 8 + [SHORT] * 2,
            demonstrations=[episode(2), episode(19), episode(19)],
            success=0.49,
        ),
        "demonstrations take 19 steps, and 80% of the episodes are cut off after 20",
        [
            dict(online=[SLOW] * 9, demonstrations=[episode(19)] * 3),
            dict(online=[SLOW] * 8 + [SHORT] * 2, demonstrations=[episode(19)] * 2),
            dict(online=[SLOW] * 8 + [SHORT] * 2, demonstrations=[episode(19)] * 3, success=0.5),
            dict(online=[SLOW] * 8 + [SHORT] * 2, demonstrations=[episode(18)] * 3),
            dict(online=[SLOW] * 7 + [SHORT] * 3, demonstrations=[episode(19)] * 3),
        ],
    ),
    (
        "no_updates",
        dict(updates=0, steps=7),
        "7 time steps arrived, but the learner made no update",
        [dict(updates=1, steps=7)],
    ),
    (
        "no_finished_episode",
        dict(no_episode=True, steps=1210, demonstrations=[episode()] * 2),
        "the policy played 1,200 time steps, and no episode of it has ended: the replay is empty",
        [
            dict(no_episode=True, steps=209, demonstrations=[episode()] * 2),
            dict(no_episode=False, steps=1210),
            dict(no_episode=True, steps=1210, statuses={"stale": 1}),
        ],
    ),
    (
        "no_finished_episode",
        dict(no_episode=True, steps=200),
        "the policy played 200 time steps, and no episode of it has ended: the replay is empty",
        [],
    ),
    (
        "observations_dead",
        dict(online=[episode(vectors=np.ones((6, 2)) * [1, -3])] * 10),
        "none of the 2 observed numbers ever changes in 60 time steps",
        [
            dict(online=[episode(vectors=np.ones((6, 2)))] * 9),
            dict(online=[episode(vectors=np.ones((6, 2)) * [1, number]) for number in range(10)]),
        ],
    ),
]


@pytest.mark.parametrize("name, figures, words, too_little", THRESHOLDS)
def test_a_check_speaks_from_its_threshold_on_and_says_the_figures(
    name, figures, words, too_little
):
    by_name = {finding.name: finding for finding in diagnose(evidence_of(**figures))}
    assert by_name[name].evidence == words
    for less in too_little:
        names = [finding.name for finding in diagnose(evidence_of(**less))]
        assert name not in names, less


def test_the_critic_of_an_undiscounted_task_may_expect_every_reward_to_come():
    recipe = load_recipe("sim_rlpd", ["algorithm.discount=1.0"])
    online = [episode(40, reward=2.0)]
    assert Evidence(load_recipe("sim_sac", ["algorithm={name: sft}"]), []).discount == 0.99
    for value, names in ((240.0, []), (241.0, ["critic_diverges"])):
        evidence = evidence_of(online, recipe=recipe, metrics={"q": value})
        assert [finding.name for finding in diagnose(evidence)] == names


def test_a_run_that_nobody_began_shows_nothing():
    assert diagnose(Evidence(RLPD, [])) == [] and Evidence(RLPD, []).success == 0.0
    (finding,) = diagnose(Evidence(RLPD, [{"success": 0.0}]))
    assert finding.name == "no_updates", "an evaluation is a beginning"


def test_the_figures_are_those_of_the_newest_checkpoint_and_the_last_evaluation(tmp_path):
    run = run_folder(
        tmp_path / "run",
        online=[[part.astype(np.float32) for part in episode(3, actions=[[0.5, 0.5]] * 3)]] * 2,
        metrics={"q": 0.25},
        statuses={"online": 2, "stale": 1},
        updates=7,
        steps=11,
        ids=[("a", "refused: no"), ("b", "online"), ("c", "refused: neither")],
    )
    lines = [{"event": "placement"}, {"event": "evaluation", "success": 0.75}]
    with (run / "progress.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    evidence = read_evidence(run)
    assert (evidence.updates, evidence.steps, evidence.success) == (7, 11, 0.75)
    assert evidence.metrics == {"q": 0.25} and len(evidence.evaluations) == 2
    assert evidence.statuses == {"online": 2, "stale": 1, "refused": 2}
    assert (len(evidence.online), len(evidence.demonstrations)) == (2, 0)
    assert not evidence.no_episode
    assert evidence.online.lengths.tolist() == [3, 3] and evidence.recipe.algorithm.name == "rlpd"


@pytest.mark.parametrize("state", [{}, {"data": {"online": {}}, "progress": {"metrics": []}}])
def test_a_checkpoint_without_a_replay_has_no_episodes(state, tmp_path):
    run = run_folder(tmp_path / "run")
    checkpoint.save(run / "checkpoints", "updates", {"learner": {"updates": 3}} | state)
    evidence = read_evidence(run)
    assert (evidence.updates, evidence.steps, evidence.metrics) == (3, 0, {})
    assert evidence.statuses == {"refused": 0} and not evidence.no_episode
    assert len(evidence.online) == len(evidence.demonstrations) == 0


def test_a_run_without_a_checkpoint_is_judged_by_its_evaluations(tmp_path):
    (tmp_path / "recipe.yaml").write_text("defaults: sim_rlpd\n")
    (tmp_path / "progress.jsonl").write_text('{"event": "evaluation", "success": 0.5}\n')
    evidence = read_evidence(tmp_path)
    assert evidence.success == 0.5 and evidence.updates == 0 and evidence.statuses == {}


def test_what_a_person_commanded_is_counted_in_the_newest_training_episodes(
    task, tmp_path, monkeypatch
):
    spool, inbox = Spool(tmp_path / "spool"), tmp_path / "run" / "inbox"
    monkeypatch.setattr(diagnosis, "RECORDINGS", 3)
    for age, (name, how) in enumerate(
        [
            ("z-newest", dict(sources={1: "operator"})),
            ("a-next", dict(sources={0: "operator", 1: "operator", 2: "operator"})),
            ("n-shown", dict(mode="demonstration", sources=dict.fromkeys(range(4), "operator"))),
            ("y-oldest", dict(sources=dict.fromkeys(range(4), "operator"))),
        ]
    ):
        folder = inbox / name
        inbox.mkdir(parents=True, exist_ok=True)
        record(spool, task.spec, name, steps=4, **how).close().rename(folder)
        os.utime(folder, (1e9 - age, 1e9 - age))
    run = run_folder(tmp_path / "run")
    assert sorted(read_evidence(run).operator_shares) == [0.25, 0.75]
