"""Train TRL's GRPO on the sums of configs/text_arithmetic.yaml, for benchmarks/agentic.py.

    TRL_PYTHON scripts/trl_arithmetic.py FOLDER  # sums.json and the network; writes result.json

As many completions in groups of as many, the same learning rate, the same held-out sums, greedily.
Both runs have one torch thread.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

torch.set_num_threads(1)
folder = Path(sys.argv[1])
settings = json.loads((folder / "sums.json").read_text())
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer.from_str(settings["tokenizer"]),
    eos_token="<|end|>",
    pad_token="<|tool|>",
)
model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
model.generation_config.pad_token_id = model.config.pad_token_id = tokenizer.pad_token_id


def right(completions: list[str], answer: list[str], **_: object) -> list[float]:
    """Return 1 if the text after the last colon is exactly the sum, else 0."""
    return [
        float(completion.rpartition(":")[2] == wanted)
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def success() -> float:
    """Return the share of held-out sums that the likeliest tokens solve."""
    batch = tokenizer([prompt for prompt, _ in settings["held_out"]], return_tensors="pt")
    with torch.no_grad():
        drawn = model.generate(
            batch.input_ids,
            attention_mask=batch.attention_mask,
            do_sample=False,
            max_new_tokens=settings["max_new_tokens"],
        )
    texts = tokenizer.batch_decode(drawn[:, batch.input_ids.shape[1] :], skip_special_tokens=True)
    answers = [answer for _, answer in settings["held_out"]]
    return sum(
        text.rpartition(":")[2] == answer for text, answer in zip(texts, answers, strict=True)
    ) / len(texts)


before = success()
completions, group, steps = settings["completions"], settings["group"], settings["steps"]
trainer = GRPOTrainer(
    model,
    right,
    args=GRPOConfig(
        str(folder / "trl"),
        per_device_train_batch_size=completions,
        num_generations=group,
        max_steps=steps,
        learning_rate=settings["learning_rate"],
        lr_scheduler_type=settings["schedule"],
        max_completion_length=settings["max_new_tokens"],
        temperature=settings["temperature"],
        beta=0.0,
        epsilon=0.2,
        epsilon_high=settings["clip_high"],
        loss_type="grpo",
        max_grad_norm=1.0,
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        seed=settings["seed"],
    ),
    train_dataset=Dataset.from_list(
        [{"prompt": prompt, "answer": answer} for prompt, answer in settings["training"]]
    ),
    processing_class=tokenizer,
)
started, cpu = time.perf_counter(), time.process_time()
trainer.train()
(folder / "result.json").write_text(
    json.dumps(
        {
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - cpu,
            "before": before,
            "after": success(),
        }
    )
)
