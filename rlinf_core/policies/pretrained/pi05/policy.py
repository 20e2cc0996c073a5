"""pi0.5: like pi0, with the state as words that the vision-language model reads.

Physical Intelligence 2025, arXiv 2504.16054. A state's numbers are cut into 256 bins from the 0.01
to the 0.99 quantile of a Gaussian with their mean and deviation, and stand in the prompt. Pictures
are prepared like pi0's.
"""

from __future__ import annotations

from typing import Any, ClassVar

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
from rlinf_core.policies.pretrained.tokenization import Tokenizer, decode_instruction, pad_tokens
from rlinf_core.specs import arrays
from rlinf_core.specs.arrays import StationSpec

BINS = 256
QUANTILE = 2.3263  # deviations from the mean
ROUNDING = 1e-4  # tolerance of the first bin, for a state equal to the lowest quantile
PROMPT = "Task: {}, State: {};\nAction: "


class Pi05(ExpertFlowMatching):
    """Pictures, sentence and state go to the vision-language model; actions to the expert."""

    config: Config
    name = "pi05"
    factory: ClassVar[NetworkFactory] = FACTORY
    statistics_kind, quantile = "quantiles", QUANTILE

    def __init__(
        self,
        spec: StationSpec,
        config: Config | None = None,
        network: Any = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(spec, config or Config(), network, tokenizer)

    def inputs(self, batch: Batch) -> Batch:
        """Return pictures, and tokens with their mask."""
        size = self.network.image_size
        antialias = self.network.config.get(MAKER) != "lerobot"
        pixels = torch.stack(
            [letterbox(batch[image.name], size, antialias) for image in self.spec.images], dim=1
        )
        ids, mask = pad_tokens(self.prompts(batch), pixels.device, multiple=self.multiple)
        return {"pixels": pixels, "ids": ids, "mask": mask}

    def prompts(self, batch: Batch) -> list[list[int]]:
        """Return the tokens of each sentence and its state.

        A number below the bins is -1 with a checkpoint's statistics, like in openpi; with learned
        ones it is in the first bin.
        """
        edges = torch.linspace(-1.0, 1.0, BINS + 1, device=self.device)[:-1]
        edges[0] -= ROUNDING
        state = self.normalisation.normalised(batch["vectors"]) / QUANTILE
        if self.config.pad_state:
            state = F.pad(state, (0, self.room[0] - state.shape[-1]))
        least = -1 if isinstance(self.normalisation, FixedNormalisation) else 0
        bins = (torch.bucketize(state, edges, right=True) - 1).clamp(min=least).tolist()
        rows = [bytes(row) for row in batch[arrays.NAME].numpy(force=True)]
        sentences = [
            decode_instruction(row, "a pi05").strip().replace("_", " ").replace("\n", " ")
            for row in rows
        ]
        texts = [
            PROMPT.format(sentence, " ".join(map(str, numbers)))
            for sentence, numbers in zip(sentences, bins, strict=True)
        ]
        return [self.prompt(text)[: self.config.tokens] for text in texts]

    def prompt(self, sentence: str) -> list[int]:
        """See ``FlowMatching``."""
        return [self.network.vlm.config.text_config.bos_token_id, *self.tokenizer.ids(sentence)]


Policy = Pi05
