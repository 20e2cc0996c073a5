"""Runs in conversations: they learn, go on after a kill to the bit, and bound how old a token may
be.
"""

import json
import subprocess
import sys

import pytest
import torch

from rlinf_core.agentic.environment import Scene, TextStep
from rlinf_core.agentic.settings import Text
from rlinf_core.agentic.source import Conversations
from rlinf_core.agentic.tasks import text_task
from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError
from rlinf_core.policies.policy_folder import newest_policy
from rlinf_core.policies.serialization import load_policy
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.trainer.train import train
from tests.agentic.test_language import tiny

SHORT = [
    "simulation.environments=16",
    "simulation.env_steps=64",
    "simulation.evaluate_every=32",
    "device=cpu",
    "simulation.evaluate_episodes=8",
    "text.warm_start.steps=3",
    "text.warm_start.batch_size=8",
    "policy.network={hidden_size: 32, intermediate_size: 64, num_attention_heads: 2, "
    "num_key_value_heads: 2}",
]


DIGIT = [
    "env=text:tests.agentic.test_text_run:Digit",
    "text.warm_start.steps=60",
    "text.warm_start.batch_size=64",
]


class Digit:
    """Any message that is one digit is right: a task that a network learns in a few updates."""

    count = 0

    def reset(self, seed):
        return Scene([{"role": "user", "content": "a digit"}])

    def step(self, message):
        return TextStep(
            reward=float(message["content"].isdigit() and len(message["content"]) == 1), done=True
        )

    def example(self):
        self.count += 1
        return [{"role": "assistant", "content": "abcdefgh12"[self.count % 10]}]


def recipe(*overrides):
    return load_recipe("text_arithmetic", [*SHORT, *overrides])


def weights(folder):
    return load_policy(newest_policy(folder)).state_dict()


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "algorithm",
    [
        ["algorithm.correction=token_truncate"],
        ["algorithm.name=dapo", "algorithm.group=8"],
        ["algorithm.name=reinforce", "algorithm.group=8"],
        ["algorithm.name=ppo", "algorithm.discount=1.0"],
        ["algorithm.name=async_ppo", "algorithm.discount=1.0", "text.max_staleness=1"],
    ],
)
def test_every_algorithm_trains_on_conversations(algorithm, tmp_path):
    before = []
    last = train(
        recipe(*DIGIT, *algorithm),
        tmp_path,
        on_progress=lambda run, entry: (
            before
            or before.append(
                {name: value.clone() for name, value in run.policy.state_dict().items()}
            )
        ),
    )
    assert (
        last["env_steps"] >= 64 and last["updates"] >= 1 and not same(before[0], weights(tmp_path))
    )


@pytest.mark.parametrize(
    "more", [[], ["text.max_staleness=2", "text.slice_tokens=1", "algorithm.correction=token_mask"]]
)
def test_a_run_that_goes_on_is_the_run_that_was_not_interrupted(more, tmp_path):
    """Conversations that were under way, too: each enters once, with the tokens that it had."""
    complete = recipe(*DIGIT, *more)
    train(complete, tmp_path / "whole")

    def stop(run, entry):
        run.stopping = run.steps >= 32

    train(complete, tmp_path / "parts", on_progress=stop)
    train(complete, tmp_path / "parts")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    first = load_policy(tmp_path / "whole/policies/policy-00000001.safetensors").state_dict()
    assert not same(first, weights(tmp_path / "whole"))
    lines = [
        [
            json.loads(line)["draw"]
            for file in sorted((tmp_path / run / "conversations").glob("updates-*"))
            for line in file.read_text().splitlines()
        ]
        for run in ("whole", "parts")
    ]
    assert lines[0] == lines[1] and len(set(lines[0])) == len(lines[0]) == 64


def test_a_killed_run_goes_on(tmp_path):
    """kill -9 in the midst: what the checkpoint has not seen is drawn anew, once."""
    out = tmp_path / "run"
    program = (
        "import os, signal, sys\nfrom rlinf_core.trainer.train import train\n"
        "from tests.agentic.test_text_run import DIGIT, recipe\nfrom pathlib import Path\n"
        "def tell(run, entry):\n    if run.steps >= 48: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"train(recipe(*DIGIT), Path({str(out)!r}), on_progress=tell)\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    train(recipe(*DIGIT), out)
    train(recipe(*DIGIT), tmp_path / "whole")
    assert same(weights(tmp_path / "whole"), weights(out))


def source(policy, size=16, **settings):
    return Conversations(
        Text(max_new_tokens=4, max_tokens=40, **settings),
        text_task("arithmetic", {}),
        policy,
        size,
        0,
    )


def test_no_staleness_is_synchronous_to_the_bit():
    """Slices, and a bound on concurrency, change which requests go together, and not what
    is drawn.
    """
    policy = tiny()
    rollouts = []
    for settings in ({}, {"slice_tokens": 1}, {"concurrency": 5}):
        conversations = source(policy, **settings)
        rollouts.append(
            [conversations.take(version, {"group": 4}).rollouts[0] for version in range(2)]
        )
    for others in rollouts[1:]:
        for one, other in zip(rollouts[0], others, strict=True):
            assert torch.equal(one.actions, other.actions) and torch.equal(
                one.versions, other.versions
            )
            torch.testing.assert_close(one.log_probs, other.log_probs, rtol=0, atol=1e-6)
    assert [rollout.versions.unique().tolist() for rollout in rollouts[0]] == [[0.0], [1.0]]


@pytest.mark.parametrize(
    "name, options, rows",
    [
        ("search", {"hops": 2, "brief": True}, [3]),
        ("wide", {"cells": 2, "sub_agents": 2, "brief": True}, [2, 2, 2]),
        ("wide", {"cells": 2, "sub_agents": 0, "brief": True}, [2]),
    ],
)
def test_a_warm_start_clones_the_experts_rows_of_every_agent(name, options, rows):
    """The marked tokens are its messages, and played again they earn the complete reward."""
    policy = tiny()
    conversations = Conversations(Text(), text_task(name, options), policy, 8, 0)
    examples = conversations._expert_rows(3)
    stop = policy.tokenizer.stop_ids[0]
    assert [
        sum(mark == 1.0 and token == stop for token, mark in zip(*example, strict=True))
        for example in examples
    ] == rows
    environment = text_task(name, options)()
    scene = environment.reset(3)
    first = policy.tokenizer.prompt(scene.messages, [tool.schema() for tool in scene.tools])
    tokens, marks = examples[0]
    assert tokens[: len(first)] == first and not any(marks[: len(first)]) and marks[len(first)] == 1
    answer = tokens[-(marks[::-1].index(0.0)) :]
    written = policy.tokenizer.message(answer)["content"]
    expected = (
        environment.answer
        if name == "search"
        else "\n".join(f"{key}: {value}" for key, value in environment.truth.items())
    )
    assert written == expected


def test_staleness_is_bounded_and_each_conversation_enters_once():
    policy, stale = tiny(), set()
    # messages of different lengths
    policy.tokenizer.stop_ids = tuple(range(0, policy.vocabulary_size, 3))
    conversations = source(policy, max_staleness=2, slice_tokens=1, concurrency=20)
    draws = []
    record = conversations._record
    conversations._record = lambda name, played: (
        draws.extend(one.draw for one in played),
        record(name, played),
    )
    for version in range(8):
        rollout = conversations.take(version, {"group": 4}).rollouts[0]
        stale |= set((version - rollout.versions).unique().tolist())
        assert rollout.returns.shape == (16,)
    assert max(stale) == 2.0 and len(set(draws)) == len(draws) == 8 * 16
    mixed = {
        len({version for row in one.rows for version in row.versions if version >= 0})
        for group in conversations.groups
        for one in group
    }
    assert max(mixed) > 1, "a conversation goes on under newer weights"


@pytest.mark.parametrize(
    "overrides, words",
    [
        (
            ["simulation.environments=12"],
            "simulation.environments: expected a multiple of algorithm.group",
        ),
        (["env=text:nothing"], "env: text: expected one of arithmetic"),
        (["text.max_tokens=4"], "text.max_tokens: expected more than text.max_new_tokens"),
        (["text.engine=openai"], "text.address': expected http"),
        (["env=''"], "policy.kind: expected language with env text:TASK"),
        (["env=gym:Pendulum-v1"], "policy.kind: expected language with env text:TASK"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, words):
    with pytest.raises(RecipeError, match=words):
        check_recipe(recipe(*overrides))


def test_a_prompt_without_room_for_an_answer_is_refused():
    conversations = Conversations(
        Text(max_new_tokens=4, max_tokens=9), text_task("arithmetic", {}), tiny(), 8, 0
    )
    with pytest.raises(
        RecipeError,
        match="text.max_tokens: expected more than the prompt of scene 0, which has 9 tokens",
    ):
        conversations.take(0, {"group": 4})


def test_conversations_are_shown(tmp_path, capsys, monkeypatch):
    train(recipe(), tmp_path)
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "evaluation-" in out and "scene 1000000: reward" in out and "tokens: 9 of prompts" in out
    assert main(["chat", str(tmp_path), "--scene", "1000000"]) == 0
    assert "user to agent:" in capsys.readouterr().out
    lines = iter(["1+1=", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert main(["chat", str(tmp_path)]) == 0
    assert "user to agent: 1+1=" in capsys.readouterr().out


def test_it_learns_a_little(tmp_path):
    """A warm start outputs digits in a fifth of the cases; GRPO learns that digits are right."""
    rewards = []

    def on_progress(run, entry):
        if hasattr(run.data, "last"):
            rewards.append(run.data.last.returns.mean().item())

    train(
        recipe(
            *DIGIT,
            "simulation.environments=64",
            "simulation.env_steps=1920",
            "algorithm.learning_rate=4e-3",
            "simulation.evaluate_every=100000",
        ),
        tmp_path,
        on_progress=on_progress,
    )
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.3


@pytest.mark.slow
def test_sums_are_learned(tmp_path):
    """About 40 % of the held-out sums after the warm start, at least 85 % at the end."""
    before = []
    last = train(
        load_recipe("text_arithmetic"),
        tmp_path,
        on_progress=lambda run, entry: before.append(entry["success"]) if entry else None,
    )
    assert 0.3 < before[0] < 0.5 and last["success"] >= 0.85
