"""The engine behind a server of OpenAI's protocol that returns token ids and log-probabilities.

vLLM does. The calls for SGLang's weights are untested against a real server. Prompts travel as ids
and are never encoded again. New weights travel in a safetensors file, adapters in an adapter's
folder, both on a disk that the server reads.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlinf_core.agentic.engines.base import (
    Engine,
    EngineMismatchError,
    Generation,
    GenerationRequest,
    ScoringPolicy,
)
from rlinf_core.core.connections import is_loopback
from rlinf_core.core.errors import EngineError, escape_ascii

ANSWER_BYTES = 64 << 20
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# calls around new weights, by the kind of server
RELOADS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "vllm": [
        ("/pause", {}),
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/reset_prefix_cache", {}),
        ("/resume", {}),
    ],
    "sglang": [
        ("/update_weights_from_disk", {"model_path": ""}),
        ("/flush_cache", {}),
    ],
}


class OpenAIEngine(Engine):
    """Draws with a server.

    The server must draw from the plain distribution: the request turns top-p, top-k and penalties
    off. Its log-probabilities must be those of the scaled distribution (vLLM: ``--logprobs-mode
    processed_logprobs``). ``check`` reveals a server that does otherwise.
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        folder: str | Path = "",
        kind: str = "",
        *,
        concurrency: int = 32,
        timeout_s: float = 600.0,
        key_variable: str = "",
    ) -> None:
        """Connect to a server.

        Args:
            url: the server's address
            model: its name for the model; by default the first in its list
            folder: the folder of its model, for new weights; by default from its list. A folder
                beside it holds adapters
            kind: vllm or sglang, which selects the calls for new weights; by default the server's
                own answer
            concurrency: requests at once
            timeout_s: timeout of a request
            key_variable: name of the environment variable with the server's key, if it needs one
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EngineError(
                "engine: expected a url such as http://127.0.0.1:8000/v1, got "
                f"'{escape_ascii(url)}'"
            )
        self.is_local = is_loopback(parts.hostname)
        if key_variable and parts.scheme == "http" and not self.is_local:
            raise EngineError(
                "engine: expected https://, since each request contains a key, got "
                f"'{escape_ascii(url)}'"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self.timeout_s, self.key_variable = timeout_s, key_variable
        self.adapter = ""
        self._loaded = 0
        self.kind = kind
        self._old_head: Any = None
        self._new_head: Any = None
        listed = {} if model and folder and kind else self._listed()
        self.model = model or str(listed.get("id", ""))
        self.folder = Path(folder or listed.get("root") or listed.get("id", ""))
        self.kind = kind or str(listed.get("owned_by", ""))
        if self.kind not in RELOADS:
            raise EngineError(
                f"{self.url}: expected a server of {', '.join(RELOADS)}, got "
                f"'{escape_ascii(self.kind)}'"
            )
        self._pool = ThreadPoolExecutor(concurrency)

    def _listed(self) -> dict[str, Any]:
        """Return the first entry of the server's list of models."""
        try:
            return dict(self._call("/v1/models", None)["data"][0])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(
                f"{self.url}/v1/models: expected a list of models, got none"
            ) from error

    def close(self) -> None:
        """End the threads; the server keeps running."""
        self._pool.shutdown(cancel_futures=True)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See ``Engine``.

        Raises:
            EngineError: the server is unreachable, or its answer has no token ids or
                log-probabilities.
        """
        return list(self._pool.map(self._generate, requests))

    def _generate(self, request: GenerationRequest) -> Generation:
        version = self.version
        body = {
            "model": self.adapter or self.model,
            "prompt": list(request.tokens),
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "seed": request.seed % (1 << 63),
            "stop_token_ids": list(request.stop_ids),
            "ignore_eos": True,  # only the request's stop ids end a completion
            "logprobs": 0 if self.kind == "vllm" else 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        answer = self._call("/v1/completions", body)
        try:
            choice = answer["choices"][0]
            values = [float(value) for value in choice["logprobs"]["token_logprobs"]]
            listed = choice.get("token_ids")
            if listed is None:
                listed = [text.removeprefix("token_id:") for text in choice["logprobs"]["tokens"]]
            tokens = [int(token) for token in listed]
            reason = str(choice["finish_reason"])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(
                f"{self.url}: expected token ids and their log-probabilities, got "
                f"'{escape_ascii(answer)[:300]}'. Use a server with return_token_ids (vLLM)"
            ) from error
        is_sound = (
            0 < len(tokens) == len(values) <= request.max_new_tokens
            and all(math.isfinite(value) and value < 1e-3 for value in values)
            and reason in ("stop", "length")
        )
        if not is_sound:
            raise EngineError(
                f"{self.url}: expected 1 to {request.max_new_tokens} tokens, each with a finite "
                f"log-probability, and an end by stop or length; got {len(tokens)} tokens, "
                f"{len(values)} log-probabilities, '{escape_ascii(reason)}'"
            )
        ended = tokens[-1] in request.stop_ids
        return Generation(tokens, values, "stop" if ended else "length", version)

    def update(self, policy: ScoringPolicy, version: int) -> None:
        """Write the policy's weights, or its adapters, and make the server load them.

        Raises:
            EngineError: the server refuses. It may then hold either version; ``check`` tells.
        """
        if any(".lora_" in name for name, _ in policy.network.named_parameters()):
            self._update_adapter(policy, version)
        else:
            self._remember_head(policy)
            write_weights(policy.network, self.folder)
            for path, body in RELOADS[self.kind]:
                self._call(path, {"model_path": str(self.folder)} if "model_path" in body else body)
        self.version = version

    def _update_adapter(self, policy: ScoringPolicy, version: int) -> None:
        """Load the adapter under a new name, so that requests in flight end under the old one."""
        self._loaded += 1
        name = f"{self.model.rsplit('/', 1)[-1]}-adapter-{version}-{self._loaded}"
        folder = write_adapter(
            policy.network, self.folder.with_name(f"{self.folder.name}-adapters") / name
        )
        self._call(
            "/v1/load_lora_adapter" if self.kind == "vllm" else "/load_lora_adapter",
            {"lora_name": name, "lora_path": str(folder)},
        )
        old = self.adapter
        self.adapter = name
        if old and old != name:
            self._call(
                "/v1/unload_lora_adapter" if self.kind == "vllm" else "/unload_lora_adapter",
                {"lora_name": old},
            )
            shutil.rmtree(folder.with_name(old), ignore_errors=True)

    def check(self, policy: ScoringPolicy, tolerance: float = 1e-4) -> float:
        """Compare log-probabilities (see ``Engine``).

        The error names a stale head or a stale prefix cache if one is the cause.
        """
        try:
            return super().check(policy, tolerance)
        except EngineMismatchError as error:
            raise EngineMismatchError(f"{self._diagnosis(policy, tolerance)} {error}") from error

    def _diagnosis(self, policy: ScoringPolicy, tolerance: float) -> str:
        """Return the reason why log-probabilities differ, from prompts that no cache holds."""
        words = min(policy.vocabulary_size, 200)
        noise = os.urandom(24)
        request = GenerationRequest([byte % words for byte in noise], 8, policy.temperature, ())
        drawn = self.generate([request])[0]
        row = [*request.tokens, *drawn.tokens]
        start = len(request.tokens)

        def worst(values: Sequence[float]) -> float:
            return max(abs(a - b) for a, b in zip(values[start:], drawn.log_probs, strict=True))

        if worst(policy.score([row])[0]) <= tolerance:
            return "stale prefix cache: prompts that were never sent before are right."
        if (
            self._old_head is not None
            and worst(self._score_with_old_head(policy, row)) <= tolerance
        ):
            return (
                "stale tied head: the engine has the new weights but the head of an older version "
                "(vLLM on CPU keeps a copy of it; docs/howto/agents.md has the plug-in)."
            )
        return "other weights, or another distribution (top-p, unscaled log-probabilities)."

    def _remember_head(self, policy: ScoringPolicy) -> None:
        """Keep the head that the server has, if input and output embeddings are tied."""
        if getattr(policy.network.config, "tie_word_embeddings", False):
            head = policy.network.get_output_embeddings().weight.detach().float().cpu().clone()
            self._old_head = self._new_head
            self._new_head = head

    def _score_with_old_head(self, policy: ScoringPolicy, row: Sequence[int]) -> list[float]:
        import torch

        tokens = torch.tensor([row], device=next(policy.network.parameters()).device)
        with torch.no_grad():
            hidden = policy.network.base_model(input_ids=tokens, use_cache=False).last_hidden_state[
                0
            ]
            logits = hidden.float().cpu() @ self._old_head.T / policy.temperature
        every = logits[:-1].log_softmax(dim=-1)
        return [0.0, *every.gather(-1, tokens[0, 1:, None].cpu()).squeeze(-1).tolist()]

    def _call(self, path: str, body: dict[str, Any] | None) -> Any:
        """Return the answer to a POST, or to a GET without a body; None if it is not JSON."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        if self.key_variable:
            key = os.environ.get(self.key_variable, "")
            if not key or not key.isascii() or not key.isprintable():
                raise EngineError(f"engine: expected a key in ${self.key_variable}, got none")
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        try:
            opener = _DIRECT.open if self.is_local else urllib.request.urlopen
            with opener(request, timeout=self.timeout_s) as answer:
                text = answer.read(ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            reason = escape_ascii(error.read(300).decode(errors="replace"))
            hint = ""
            if error.code == 404 and self.kind == "vllm":
                hint = (
                    " Start vLLM with VLLM_SERVER_DEV_MODE=1, and for adapters with "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
                )
            raise EngineError(
                f"{self.url}{path}: expected an answer, got status {error.code}: '{reason}'.{hint}"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(
                f"{self.url}{path}: expected an answer within {self.timeout_s:g} s, got "
                f"'{escape_ascii(error)}'. Is the server running?"
            ) from error
        try:
            return json.loads(text)
        except ValueError:
            return None


def write_weights(network: Any, folder: Path) -> Path:
    """Write a network's weights to ``folder/model.safetensors``, replacing it atomically.

    A tied head is written only under the embedding's name, as transformers does.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "model.safetensors.index.json").exists():
        raise EngineError(
            f"engine: expected a folder with its weights in one file, got several in {folder}. "
            "Save the model there with save_pretrained(max_shard_size='1000GB')"
        )
    weights, storages = {}, set()
    for name, tensor in network.state_dict().items():
        if tensor.data_ptr() in storages:
            continue
        storages.add(tensor.data_ptr())
        weights[name] = tensor.detach().cpu().contiguous()
    temporary = folder / ".model.safetensors.part"
    save_file(weights, temporary, {"format": "pt"})
    os.replace(temporary, folder / "model.safetensors")
    if not (folder / "config.json").exists():
        network.config.save_pretrained(folder)
    return folder


def write_adapter(network: Any, folder: Path) -> Path:
    """Write a network's LoRA weights as a peft folder: adapter_config.json and safetensors."""
    from safetensors.torch import save_file

    layers = [
        (name, module) for name, module in network.named_modules() if hasattr(module, "lora_A")
    ]
    rank, alpha = layers[0][1].r["default"], layers[0][1].lora_alpha["default"]
    weights = {}
    for name, module in layers:
        for part in ("lora_A", "lora_B"):
            weight = getattr(module, part)["default"].weight
            weights[f"base_model.model.{name}.{part}.weight"] = weight.detach().cpu().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rsplit(".", 1)[-1] for name, _ in layers}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(described, indent=1))
    return folder
