"""Warm start of a language policy: it clones examples before reinforcement learning."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.agentic.settings import WarmStart
from rlinf_core.core.errors import RecipeError

if TYPE_CHECKING:
    from rlinf_core.agentic.completion_server import TextCodec
    from rlinf_core.policies.pretrained.language.policy import LanguagePolicy

Example = tuple[list[int], list[float]]  # tokens, and 1 for those that the policy must write
CHECK_EVERY = 5  # gradient steps between two measurements of success, while it is far
# examples with a smaller likelihood, as a fraction of the success to reach, are not yet measured
LIKELY = 0.01


def clone_examples(
    policy: LanguagePolicy,
    examples: Sequence[Example],
    settings: WarmStart,
    seed: int,
    success: Callable[[], float] | None = None,
) -> None:
    """Fine-tune on examples, until ``success`` reaches ``settings.until``.

    Args:
        policy: learns.
        examples: are drawn with replacement.
        settings: steps, batch size, learning rate and the success at which it ends. Every step
            is measured from half of it on.
        seed: seed of the draws.
        success: measures the policy, 0 to 1; without it all steps are taken.
    """
    import torch

    policy.train()
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate)
    longest = max(len(tokens) for tokens, _ in examples)
    tokens = torch.tensor(
        [[*tokens, *[0] * (longest - len(tokens))] for tokens, _ in examples], device=policy.device
    )
    mask = torch.tensor(
        [[*marks, *[0.0] * (longest - len(marks))] for _, marks in examples], device=policy.device
    )
    generator, check_every = torch.Generator().manual_seed(seed), CHECK_EVERY
    for step in range(settings.steps):
        batch = torch.randint(len(examples), (settings.batch_size,), generator=generator)
        optimiser.zero_grad()
        loss = policy.imitation_loss({"executed": mask[batch]}, tokens[batch].unsqueeze(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        if success is None or settings.until == 1.0 or (step + 1) % check_every:
            continue
        written = mask[batch].sum().item() / len(batch)  # tokens of an example
        if math.exp(-loss.item() * written) < LIKELY * settings.until:
            continue
        rate = success()
        if rate >= settings.until:
            return
        if rate >= settings.until / 2.0:  # success rises fast: do not overshoot
            check_every = 1


def read_examples(path: Path, codec: TextCodec) -> list[Example]:
    """Read completions to clone from a file of JSON lines with ``prompt`` and ``completion``.

    Raises:
        RecipeError: names the line that is not of this form.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"text.feedback.examples: expected a file of JSON lines, got: {error}"
        ) from error
    examples = []
    for number, line in enumerate(lines, start=1):
        try:
            document = json.loads(line)
            prompt = codec.encode(document["prompt"])
            completion = codec.encode(document["completion"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecipeError(
                f"text.feedback.examples: line {number} of {path}: expected "
                '{"prompt": "...", "completion": "..."}'
            ) from error
        completion = [*completion, codec.stop_ids[0]]
        examples.append(([*prompt, *completion], [0.0] * len(prompt) + [1.0] * len(completion)))
    if not examples:
        raise RecipeError(f"text.feedback.examples: expected at least one line in {path}, got none")
    return examples
