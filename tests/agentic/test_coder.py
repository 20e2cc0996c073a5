"""The online coder as a run: it serves, learns, ends, and goes on behind the feedback that it
learned from.
"""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import torch

from rlinf_core.agentic.coder import OnlineCoder
from rlinf_core.agentic.settings import FeedbackServer, Text, WarmStart
from rlinf_core.agentic.warm_start import clone_examples, read_examples
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.trainer.checkpoint import load_newest
from rlinf_core.trainer.train import train
from tests.agentic.test_language import tiny

pytestmark = pytest.mark.timed

pytest.importorskip("aiohttp")
SMALL = [
    "policy.network={hidden_size: 32, intermediate_size: 64, num_attention_heads: 2, "
    "num_key_value_heads: 2}",
    "simulation.environments=16",
    "simulation.evaluate_every=16",
    "device=cpu",
    "text.max_new_tokens=4",
]


class Editor:
    """A user at an editor of a run."""

    def __init__(self, run_dir, port):
        self.token = (run_dir / "clients/editor.token").read_text().strip()
        self.address = f"http://127.0.0.1:{port}/v1"

    def post(self, path, **body):
        request = urllib.request.Request(
            f"{self.address}/{path}",
            json.dumps(body).encode() if body else None,
            {"Authorization": f"Bearer {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def rate(self, prompts, accepts):
        """Complete each prompt and say whether it is accepted; returns the fraction that is."""
        accepted = []
        for prompt in prompts:
            answer = self.post("completions", prompt=prompt)
            accepted.append(accepts(answer["choices"][0]["text"]))
            self.post("feedback", id=answer["id"], accepted=accepted[-1])
        return sum(accepted) / len(accepted)


class Served:
    """``rlinf train text_feedback`` in a process; it listens when the block begins."""

    def __init__(self, run_dir, *overrides):
        self.run_dir, self.overrides = run_dir, overrides

    def __enter__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rlinf_core.cli.main",
                "train",
                "text_feedback",
                "--out",
                str(self.run_dir),
                "--set",
                *SMALL,
                f"text.feedback.port={port}",
                *self.overrides,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(1800):  # a process that loads a network on a busy machine
            try:
                editor = Editor(self.run_dir, port)
                editor.post("models")
                return editor
            except (OSError, urllib.error.URLError):
                assert self.process.poll() is None, self.process.stdout.read()
                time.sleep(0.1)
        raise AssertionError("the run does not listen")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.output = self.process.communicate(timeout=60)[0]


def updates(run_dir):
    return load_newest(run_dir / "checkpoints")["learner"]["updates"]


def test_a_run_learns_from_an_editor_and_goes_on_behind_its_feedback(tmp_path):
    run = Served(tmp_path)
    with run as editor:
        editor.rate(["def f"] * 40, lambda text: text[:1] < "4")
        for _ in range(300):
            if editor.post("models")["data"][0]["version"] == 2:
                break
            time.sleep(0.1)
    assert run.process.returncode == 0 and updates(tmp_path) == 2, run.output
    assert f"editors call {editor.address}" in run.output
    rows = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert (
        rows[-1]["env_steps"] == 32
        and rows[-1]["feedback_accepted"] >= 32
        and 0 <= rows[-1]["success"] <= 1
    )
    again = Served(tmp_path)
    with again as editor:
        editor.rate(["def f"] * 8, lambda text: True)  # eight were left of the first time
        for _ in range(300):
            if editor.post("models")["data"][0]["version"] == 3:
                break
            time.sleep(0.1)
    assert updates(tmp_path) == 3, again.output


@pytest.mark.parametrize(
    "overrides, key",
    [
        (["algorithm.name=grpo"], "algorithm.name"),
        (["text.options={a: 1}"], "text.options"),
        (["algorithm.baseline=true"], "algorithm.baseline"),
        (["text.warm_start.steps=3"], "text.feedback.examples"),
        (["text.feedback.host=0.0.0.0"], "host"),
        (["text.feedback.clients=[../x]"], "clients"),
        (["text.feedback.clients=[a, a]"], "clients"),
        (["text.engine_options={model: m}"], "engine_options"),
    ],
)
def test_what_cannot_learn_from_feedback_is_refused(overrides, key):
    with pytest.raises(RecipeError, match=key):
        check_recipe(load_recipe("text_feedback", overrides))


def test_it_serves_by_the_weights_that_the_run_goes_on_with(tmp_path):
    """The server uses the weights after a warm start or a checkpoint, not the initial ones."""
    policy = tiny()
    coder = OnlineCoder(Text(feedback=FeedbackServer(port=0)), policy, 4, tmp_path)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1
    assert coder.port == 0, "nobody is served yet"
    coder.take(7, {})
    assert coder.port and coder.engine.version == 7 and coder.engine.check(policy) < 1e-4
    coder.close()


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        coder = OnlineCoder(Text(feedback=FeedbackServer(port=port)), tiny(), 4, tmp_path)
        with pytest.raises(
            RlinfError, match=f"text.feedback: expected a free address, got 127.0.0.1:{port}"
        ):
            coder.start()
        coder.close()


def test_examples_are_cloned(tmp_path):
    policy, file = tiny(), tmp_path / "examples.jsonl"
    file.write_text(
        "".join(
            json.dumps({"prompt": f"add {number} ", "completion": "ok"}) + "\n"
            for number in range(4)
        )
    )
    examples = read_examples(file, policy.tokenizer)

    def worst():
        return min(
            value
            for (row, mask) in examples
            for value, counts in zip(policy.score([row])[0], mask, strict=True)
            if counts
        )

    before = worst()
    clone_examples(policy, examples, WarmStart(steps=60, batch_size=8, learning_rate=1e-2), seed=0)
    assert before < -3.0 and worst() > -0.1


def examples_of(policy, file):
    return [
        score
        for row, mask in read_examples(file, policy.tokenizer)
        for score, counts in zip(policy.score([row])[0], mask, strict=True)
        if counts
    ]


def test_a_run_clones_its_examples_once_and_before_anybody_is_served(tmp_path):
    """A run that goes on, and one that begins with the policy of another run, clone nothing."""
    file, runs = tmp_path / "examples.jsonl", []
    file.write_text(json.dumps({"prompt": "add ", "completion": "ok"}) + "\n")
    warm = [
        f"text.feedback.examples={file}",
        "text.warm_start={steps: 40, batch_size: 4, learning_rate: 0.01}",
        "text.feedback.port=0",
    ]

    def begin(name, *more):
        def on_progress(run, entry):
            run.stopping = True
            runs.append(run)

        train(
            load_recipe("text_feedback", [*SMALL, *warm, *more]),
            tmp_path / name,
            on_progress=on_progress,
        )
        return runs[-1]

    def cloned_s(run):
        return run.clock.seconds.get("warm_start", 0.0)

    first, same, other = begin("a"), begin("b"), begin("c", "seed=1")
    assert cloned_s(first) > 0.0 and min(examples_of(first.policy, file)) > -0.2
    assert (first.source.size, first.next_evaluation) == (16, 16)
    assert first.source.settings is first.recipe.text and first.source.policy is first.policy
    assert first.source.evaluate() == first.evaluator() == []
    assert (tmp_path / "a/feedback.sqlite3").is_file() and Editor(tmp_path / "a", 0).token
    weights = [torch.cat([p.flatten() for p in run.policy.parameters()]) for run in runs]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    again = begin("a")
    assert cloned_s(again) == cloned_s(first), "not again"
    began = begin("d", f"simulation.initial_policy={tmp_path / 'a'}")
    assert cloned_s(began) == 0.0
    untaught = begin("e", "text.warm_start.steps=0")
    assert cloned_s(untaught) == 0.0 and min(examples_of(untaught.policy, file)) < -1.0
    assert same is not other


@pytest.mark.parametrize(
    "text", ["", "{", '{"prompt": "a"}', '{"prompt": 1, "completion": "b"}', "[1]"]
)
def test_a_line_that_is_no_example_is_named(text, tmp_path):
    (tmp_path / "examples.jsonl").write_text(text)
    with pytest.raises(RecipeError, match=r"text\.feedback\.examples"):
        read_examples(tmp_path / "examples.jsonl", tiny().tokenizer)
