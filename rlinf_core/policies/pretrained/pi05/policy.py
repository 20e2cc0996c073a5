"""pi0.5: like pi0, with the state as words that the vision-language model reads.

Physical Intelligence 2025, arXiv 2504.16054. A state's numbers are cut into 256 bins from the 0.01
to the 0.99 quantile of a Gaussian with their mean and deviation, and stand in the prompt. Images
are prepared like pi0's.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional as F

from rlinf_core.policies.base import Batch
from rlinf_core.policies.pretrained.dataset_statistics import FixedNormalisation
from rlinf_core.policies.pretrained.flow_matching import ExpertFlowMatching
from rlinf_core.policies.pretrained.image_preprocessing import letterbox
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.pretrained.openpi import MAKER
from rlinf_core.policies.pretrained.pi05 import Config
from rlinf_core.policies.pretrained.pi05.network import FACTORY
from rlinf_core.policies.pretrained.tokenization import decode_instruction, pad_tokens
from rlinf_core.specs import arrays

BINS = 256
QUANTILE = 2.3263  # deviations from the mean
ROUNDING = 1e-4  # tolerance of the first bin, for a state equal to the lowest quantile
PROMPT = "Task: {}, State: {};\nAction: "


class Pi05(ExpertFlowMatching):
    """Images, sentence and state go to the vision-language model; actions to the expert."""

    config: Config
    name = "a pi05"
    factory: ClassVar[NetworkFactory] = FACTORY
    statistics_kind, state_divisor = "quantiles", QUANTILE

    def inputs(self, batch: Batch) -> Batch:
        """Return images, and tokens with their mask."""
        size = self.network.image_size
        antialias = self.network.config.get(MAKER) != "lerobot"
        pixels = torch.stack(
            [letterbox(batch[image.name], size, antialias) for image in self.spec.images], dim=1
        )
        ids, mask = pad_tokens(
            self.tokenize_with_state(batch), pixels.device, multiple=self.token_multiple
        )
        return {"pixels": pixels, "ids": ids, "mask": mask}

    def tokenize_with_state(self, batch: Batch) -> list[list[int]]:
        """Return the tokens of each sentence and its state.

        A number below the bins is -1 with a checkpoint's statistics, like in openpi; with learned
        ones it is in the first bin.
        """
        edges = torch.linspace(-1.0, 1.0, BINS + 1, device=self.device)[:-1]
        edges[0] -= ROUNDING
        state = self.normalisation.normalize(batch["vectors"]) / QUANTILE
        if self.config.pad_state:
            state = F.pad(state, (0, self.max_state_dim - state.shape[-1]))
        lowest_bin = -1 if isinstance(self.normalisation, FixedNormalisation) else 0
        bins = (torch.bucketize(state, edges, right=True) - 1).clamp(min=lowest_bin).tolist()
        rows = [bytes(row) for row in batch[arrays.INSTRUCTION].numpy(force=True)]
        sentences = [
            decode_instruction(row, self.name).strip().replace("_", " ").replace("\n", " ")
            for row in rows
        ]
        texts = [
            PROMPT.format(sentence, " ".join(map(str, numbers)))
            for sentence, numbers in zip(sentences, bins, strict=True)
        ]
        return [self.prompt_tokens(text)[: self.config.tokens] for text in texts]

    def prompt_tokens(self, sentence: str) -> list[int]:
        """See ``FlowMatching``."""
        return [self.network.vlm.config.text_config.bos_token_id, *self.tokenizer.encode(sentence)]


Policy = Pi05
