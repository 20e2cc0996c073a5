"""A small server of OpenAI's protocol with a real transformers model, for faults on purpose.

It draws from the scaled distribution and gives token ids and log-probabilities. Two faults can be
planted: a head that stays old when weights are loaded again, and keys and values of a prompt's
prefix that stay in the cache.
"""

import copy
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

BLOCK = 16


class Server:
    def __init__(
        self, folder, *, stale_head=False, stale_cache=False, raw_log_probs=False, no_ids=False
    ):
        self.folder, self.stale_head, self.stale_cache = Path(folder), stale_head, stale_cache
        self.raw_log_probs, self.no_ids = raw_log_probs, no_ids
        self.calls, self.bodies, self.adapters = [], [], {}
        self.model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), dtype=torch.float32
        ).eval()
        self.load()
        self.head = self.model.get_output_embeddings().weight.detach().clone()
        self.cache, self.lock = {}, threading.Lock()

    def load(self):
        self.model.load_state_dict(load_file(self.folder / "model.safetensors"), strict=False)

    def __enter__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                outer.calls.append(self.path)
                status, answer = outer.answer(self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                model = {"id": "model", "root": str(outer.folder), "owned_by": "vllm"}
                data = json.dumps({"data": [model]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        class Http(ThreadingHTTPServer):
            request_queue_size = 64

        self.http = Http(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def answer(self, path, body):
        with self.lock:
            if path == "/v1/completions":
                self.bodies.append(body)
                return 200, self.complete(body)
            if path in ("/collective_rpc", "/update_weights_from_disk"):
                self.load()
                if not self.stale_head:
                    self.head = self.model.get_output_embeddings().weight.detach().clone()
                return 200, {}
            if path in ("/reset_prefix_cache", "/flush_cache"):
                if not self.stale_cache:
                    self.cache.clear()
                return 200, {}
            if path in ("/pause", "/resume"):
                return 200, {}
            if path.endswith("unload_lora_adapter"):
                del self.adapters[body["lora_name"]]
                return 200, {}
            if path.endswith("load_lora_adapter"):
                from peft import PeftModel

                self.adapters[body["lora_name"]] = PeftModel.from_pretrained(
                    copy.deepcopy(self.model), body["lora_path"]
                ).eval()
                return 200, {}
        return 404, {"detail": "Not Found"}

    @torch.no_grad()
    def complete(self, body):
        network, tied = self.model, self.head
        if body["model"] in self.adapters:
            network = self.adapters[body["model"]].base_model.model
            tied = network.get_output_embeddings().weight
        prompt = body["prompt"]
        key = (body["model"], tuple(prompt[:BLOCK]))
        cache = DynamicCache(config=network.config)
        start = 0
        if len(prompt) > BLOCK:
            if key not in self.cache:
                network.base_model(
                    input_ids=torch.tensor([prompt[:BLOCK]]), past_key_values=cache, use_cache=True
                )
                self.cache[key] = copy.deepcopy(cache)
            cache, start = copy.deepcopy(self.cache[key]), BLOCK
        draw = torch.Generator().manual_seed(body["seed"] % (1 << 31))
        new, tokens, values, reason = torch.tensor([prompt[start:]]), [], [], "length"
        for _ in range(body["max_tokens"]):
            hidden = network.base_model(
                input_ids=new, past_key_values=cache, use_cache=True
            ).last_hidden_state[0, -1]
            logits = hidden @ tied.T
            every = (logits / body["temperature"]).log_softmax(-1)
            token = int(torch.multinomial(every.exp(), 1, generator=draw))
            values.append(
                float(logits.log_softmax(-1)[token] if self.raw_log_probs else every[token])
            )
            tokens.append(token)
            new = torch.tensor([[token]])
            if token in body["stop_token_ids"]:
                reason = "stop"
                break
        choice = {"finish_reason": reason, "logprobs": {"token_logprobs": values}}
        return {"choices": [choice if self.no_ids else {**choice, "token_ids": tokens}]}
