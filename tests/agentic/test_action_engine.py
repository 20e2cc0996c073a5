"""Action tokens drawn by a server: a stand-in with transformers' model, and vLLM itself."""

import base64
import json
import os
import subprocess
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.agentic.engines.actions import EngineActor
from rlinf_core.agentic.engines.base import EngineMismatchError
from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.core.errors import EngineError, RecipeError
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.policies.pretrained.qwen_vl import Config
from rlinf_core.policies.pretrained.qwen_vl.policy import QwenVL
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.sources import check_source
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from rlinf_core.trainer.sources.simulators import InProcessRollouts, acting_policy
from tests.agentic.openai_server import Server

pytestmark = pytest.mark.timed

VLLM = Path(os.environ.get("RLINF_VLLM_VENV", ".venvs/vllm")).resolve() / "bin/python"
TORCHVISION = os.environ.get("RLINF_VLLM_TORCHVISION", "")
SIZES = {
    "tie_word_embeddings": False,
    "text_config": {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "initializer_range": 0.2,
    },
    "vision_config": {
        "patch_size": 14,
        "window_size": 112,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 48,
        "initializer_range": 0.2,
    },
}
# of vLLM's test: with larger weights float32 alone differs by more than 1e-5
TEXT = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
}
VISION = {
    "patch_size": 14,
    "window_size": 112,
    "hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 128,
}
CAMERAS = {"front": (56, 56, 3), "wrist": (84, 56, 3)}
ACTION = ActionSpec("tcp_delta", ("dx", "dy"), (0.02, 0.02), ("m", "m"))


def spec_of(cameras):
    return StationSpec(
        (
            ArraySpec("pose", (3,)),
            *(ArraySpec(name, shape, "uint8") for name, shape in cameras.items()),
        ),
        ACTION,
        10.0,
        "push",
    )


class ChatServer(Server):
    """Draws among allowed tokens by transformers' own model and processor of pictures.

    Faults: ``keep``: features of pictures stay in a cache when weights are loaded again;
    ``other_prompt``: another chat template; ``unscaled``: log-probabilities among all tokens.
    """

    def __init__(self, folder, keep=False, other_prompt=False, unscaled=False):
        from tokenizers import Tokenizer

        self.folder, self.lock = Path(folder), threading.Lock()
        self.keep, self.other_prompt, self.unscaled = keep, other_prompt, unscaled
        self.calls, self.features = [], {}
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.load()

    def load(self):
        from transformers import Qwen2_5_VLForConditionalGeneration

        self.model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            self.folder, dtype=torch.float32
        ).eval()

    def answer(self, path, body):
        with self.lock:
            if path == "/v1/chat/completions":
                return 200, self.chat(body)
            if path == "/collective_rpc":
                self.load()
            if path == "/reset_encoder_cache" and not self.keep:
                self.features.clear()
            return 200, {}

    @torch.no_grad()
    def chat(self, body):
        import cv2
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        processor = Qwen2VLImageProcessorPil(
            size={"shortest_edge": 3136, "longest_edge": 2**24}, patch_size=14, merge_size=2
        )
        text, pictures = "", []
        for message in body["messages"]:
            text += f"<|im_start|>{message['role']}\n"
            content = message["content"]
            for part in (
                [{"type": "text", "text": content}] if isinstance(content, str) else content
            ):
                if part["type"] == "text":
                    text += part["text"]
                    continue
                data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
                pictures.append(np.ascontiguousarray(picture))
                count = picture.shape[0] * picture.shape[1] // 28**2
                text += "<|vision_start|>" + "<|image_pad|>" * count + "<|vision_end|>"
            text += "<|im_end|>\n"
        text += "" if self.other_prompt else "<|im_start|>assistant\n"
        prompt = self.tokenizer.encode(text, add_special_tokens=False).ids
        images = processor(images=pictures, return_tensors="pt")
        key = images["pixel_values"].numpy().tobytes()
        if key not in self.features:
            self.features[key] = self.model.model.get_image_features(
                images["pixel_values"], images["image_grid_thw"]
            ).pooler_output
        original, self.model.model.get_image_features = self.model.model.get_image_features, None
        self.model.model.get_image_features = lambda *_, **__: type(
            "Features", (), {"pooler_output": self.features[key]}
        )()
        allowed = torch.tensor(body["allowed_token_ids"])
        draw = torch.Generator().manual_seed(body["seed"] % 2**31)
        row, entries = list(prompt), []
        for _ in range(body["max_tokens"]):
            ids = torch.tensor([row])
            logits = self.model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **images,
                mm_token_type_ids=(ids == self.model.config.image_token_id).int(),
            ).logits[0, -1]
            every = (logits[allowed] / body["temperature"]).log_softmax(-1)
            index = int(torch.multinomial(every.exp(), 1, generator=draw))
            token = int(allowed[index])
            row.append(token)
            entries.append(
                {"logprob": float(logits.log_softmax(-1)[token] if self.unscaled else every[index])}
            )
        self.model.model.get_image_features = original
        return {
            "prompt_token_ids": prompt,
            "choices": [
                {
                    "finish_reason": "length",
                    "token_ids": row[len(prompt) :],
                    "logprobs": {"content": entries},
                }
            ],
        }


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return tiny_checkpoint.write("qwen_vl", tmp_path_factory.mktemp("engine") / "model", SIZES)


@pytest.fixture
def folder(published, tmp_path):
    import shutil

    return Path(shutil.copytree(published, tmp_path / "model"))


def policy_of(folder, **config):
    torch.manual_seed(0)
    return QwenVL(
        spec_of(CAMERAS), Config(**{"horizon": 2, "checkpoint": str(folder)} | config)
    ).eval()


def learn(policy, size=0.1):
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(size * torch.randn_like(parameter))


def test_log_probabilities_are_the_trainers_after_each_of_5_updates(folder):
    policy = policy_of(folder, temperature=1.5)
    with ChatServer(folder) as server:
        actor = EngineActor(policy, server.url)
        for version in range(1, 6):
            learn(policy)
            actor.synchronise(version)
            assert actor.check() < 1e-5 and actor.engine.version == version
        assert actor.device == policy.device and actor.config is policy.config, (
            "all else is the policy's"
        )


def rewarded(policy, url, rollouts, differences=None):
    """The rewarded share of each rollout that an engine draws, by GRPO, and their player.

    Sentences name one of two marks. The first number of an action is rewarded on its mark's side.
    Each rollout begins with new weights, as ``Simulators`` asks for it. ``differences`` gets the
    largest difference of log-probabilities after each update, of two pictures and of all draws.
    """
    pictures = {
        name: torch.full((16, *shape), 90, dtype=torch.uint8) for name, shape in CAMERAS.items()
    }
    sentences = 8 * ("go to the red mark",) + 8 * ("left blue",)
    side = torch.tensor(8 * [-1.0] + 8 * [1.0])
    observed, shares = Observation(torch.zeros(16, 3), pictures, sentences), []
    settings = algorithm("grpo").Config(
        epochs=2, group=8, minibatches=2, learning_rate=3e-3, level="chunk"
    )
    learner, draw = algorithm("grpo").Learner(policy, settings, 0), torch.Generator().manual_seed(0)
    batch = {name: value[None] for name, value in policy.to_batch(observed).items()}
    one = torch.ones(1, 16)
    player = acting_policy(
        SimpleNamespace(policy=policy.config.model_copy(update={"engine": url})), policy
    )
    players = InProcessRollouts(SimpleNamespace(policy=player, version=0))
    for version in range(rollouts):
        players.start(version, {})
        chunk = player.act(observed, True, draw)
        if differences is not None:
            with torch.no_grad():
                expected, _ = policy.log_probs(policy.to_batch(observed), chunk.drawn)
            worst = float((expected.flatten() - chunk.log_probs.flatten()).abs().max())
            differences.append(max(worst, player.check()))
        rewards = (chunk.actions[:, :, 0] * side[:, None] > 0).float()
        shares.append(float(rewards.mean()))
        drawn, log_probs = chunk.drawn[None], chunk.log_probs[None]
        learner.update(
            Rollout(batch, batch, drawn, log_probs, rewards[None], one, one, one, one, 0 * one)
        )
    return shares, player


@pytest.mark.timeout(900)  # 18 s alone
def test_grpo_learns_two_marks_from_what_the_engine_draws(folder):
    with ChatServer(folder) as server:
        shares, player = rewarded(policy_of(folder, horizon=1), server.url, 32)
        assert player.engine.version == 31 and player.difference < 1e-5
    assert shares[0] < 0.7 and np.mean(shares[-4:]) > 0.85, shares


def test_features_of_older_weights_are_refused(folder):
    policy = policy_of(folder)
    with ChatServer(folder, keep=True) as server:
        actor = EngineActor(policy, server.url)
        actor.synchronise(1)
        learn(policy)
        with pytest.raises(EngineMismatchError, match="version 2 expected the trainer's"):
            actor.synchronise(2)


@pytest.mark.parametrize(
    "fault, message",
    [
        ("other_prompt", "expected the trainer's prompt"),
        ("unscaled", "expected the trainer's log-prob"),
    ],
)
def test_another_prompt_or_distribution_is_refused(folder, fault, message):
    with (
        ChatServer(folder, **{fault: True}) as server,
        pytest.raises(EngineMismatchError, match=message),
    ):
        EngineActor(policy_of(folder), server.url).synchronise(1)


def test_what_a_server_cannot_draw_is_refused_first(folder):
    with ChatServer(folder) as server:
        with pytest.raises(RecipeError, match="policy.decoding=autoregressive"):
            EngineActor(policy_of(folder, decoding="parallel"), server.url)
        other = QwenVL(spec_of({"front": (60, 56, 3)}), Config(horizon=2, checkpoint=str(folder)))
        with pytest.raises(RecipeError, match="multiples of 28 pixels"):
            EngineActor(other, server.url)
        with pytest.raises(RecipeError, match="Qwen's tokenizer"):
            EngineActor(QwenVL(spec_of(CAMERAS), Config(horizon=2)), server.url)
        with pytest.raises(EngineError, match="without adapters"):
            EngineActor(policy_of(folder, lora={"rank": 2}), server.url).synchronise(1)
        with pytest.raises(EngineError, match="expected vLLM"):
            EngineActor(policy_of(folder), server.url, model="model", folder=folder, kind="sglang")
    keys = [
        "policy={kind: qwen_vl, engine: 'http://127.0.0.1:8000/v1', horizon: 2}",
        "algorithm={name: grpo}",
    ]
    with pytest.raises(RecipeError, match="got simulators with 2 workers"):
        check_source(load_recipe("sim_vla", [*keys, "placement.workers=2"]))


@contextmanager
def vllm(folder, port=18437):
    """Start vLLM with the model of a folder; yield its address.

    vLLM imports torchvision, whose wheel on PyPI is built for CUDA: two of its operators are
    declared first.
    """
    site = folder.parent / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(DECLARED)
    command = [
        VLLM,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        folder,
        "--served-model-name",
        "model",
        "--dtype",
        "float32",
        "--port",
        port,
        "--host",
        "127.0.0.1",
        "--max-model-len",
        "1024",
        "--logprobs-mode",
        "processed_logprobs",
        "--enforce-eager",
        "--max-num-seqs",
        "8",
        "--limit-mm-per-prompt",
        json.dumps({"image": 2, "video": 0}),
        "--max-num-batched-tokens",
        "1024",
    ]
    log = folder.parent / "vllm.log"
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
        env={
            **os.environ,
            "PYTHONPATH": f"{site}{os.pathsep}{TORCHVISION}",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
        },
        start_new_session=True,
    )
    try:
        wait_for(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(60)


needs_vllm = pytest.mark.skipif(
    not VLLM.exists() or not TORCHVISION,
    reason="not run: RLINF_VLLM_VENV names no environment "
    "with vllm-cpu, or RLINF_VLLM_TORCHVISION no folder with torchvision==0.28.0",
)


def of_vllm(folder):
    """A tiny model whose log-probabilities in float32 differ by less than 1e-5."""
    parts = {"text_config": TEXT, "vision_config": VISION, "tie_word_embeddings": False}
    return tiny_checkpoint.write("qwen_vl", folder / "model", parts)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_vllm
def test_vllm_itself_gives_the_trainers_log_probabilities(tmp_path):
    folder = of_vllm(tmp_path)
    with vllm(folder) as url:
        policy = policy_of(folder)
        actor = EngineActor(policy, url)
        for version in range(1, 6):
            learn(policy, 0.05)
            actor.synchronise(version)
            assert actor.check() < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_vllm
def test_grpo_learns_two_marks_from_what_vllm_draws(tmp_path):
    """GRPO with rollouts of vLLM. Its log-probabilities are compared after each update."""
    folder = of_vllm(tmp_path)
    with vllm(folder, 18438) as url:
        differences = []
        shares, player = rewarded(policy_of(folder, horizon=1), url, 32, differences)
    print(f"rewarded: {[round(share, 2) for share in shares]}; differences: {differences}")
    assert player.engine.version == 31 and len(differences) == 32
    assert max(differences) < 1e-5, differences
    assert np.mean(shares[:8]) < 0.7 and np.mean(shares[-4:]) > 0.85, shares


DECLARED = """
import importlib.abc, sys


class Declaring(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            torch.of_torchvision = library = torch.library.Library("torchvision", "DEF")
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            for operator in ("nms", "qnms"):
                library.define(operator + signature)
        return None


sys.meta_path.insert(0, Declaring())
"""


def wait_for(url, process, log):
    end = time.monotonic() + 900
    while time.monotonic() < end and process.poll() is None:
        try:
            return urllib.request.urlopen(f"{url}/health", timeout=2)
        except OSError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])
