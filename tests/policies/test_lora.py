"""Adapters: a copy of a policy follows it, and a missing package is named with its extra."""

import numpy as np
import pytest
import torch

from rlinf_core.core import extras
from rlinf_core.core.errors import RlinfError
from rlinf_core.policies import lora
from rlinf_core.policies.pretrained import adapter_files, tiny_checkpoint
from rlinf_core.policies.pretrained.huggingface import json_text, read_json
from rlinf_core.policies.pretrained.language.policy import LanguagePolicy
from rlinf_core.policies.pretrained.network_factory import NetworkFactory
from rlinf_core.policies.settings import Lora
from rlinf_core.specs.arrays import TextSpec
from tests.algorithms.learning import make


def test_a_copy_with_adapters_follows_the_normalisation_alone():
    policy = make("tanh_gaussian")
    trained = lora.with_adapters(policy, 2)
    assert dict(policy.named_buffers()).keys() <= dict(trained.named_buffers()).keys()
    weights = {name: value.clone() for name, value in trained.named_parameters()}
    size = policy.input_spec.vector_size
    policy.encoder.set_statistics(np.full(size, 3.0), np.full(size, 0.5))
    lora.copy_buffers(trained, policy)
    followed = dict(trained.named_buffers())
    for name, buffer in policy.named_buffers():
        assert torch.equal(followed[name], buffer)
    assert (trained.encoder.mean == 3.0).all()
    for name, value in trained.named_parameters():
        assert torch.equal(value, weights[name])


class Factory(NetworkFactory):
    """A family whose networks cannot be made."""

    kind, config_name = "family", "its config"

    def make(self, config):
        raise AssertionError("it was made")

    smallest_config = read = folder_files = make


@pytest.mark.parametrize(
    ("feature", "extra", "call"),
    [
        (
            "policy.lora",
            "vla",
            lambda folder: lora.inject_adapters(torch.nn.Linear(2, 2), Lora(rank=1)),
        ),
        (
            "adapters",
            "vla",
            lambda folder: adapter_files.save(
                torch.nn.Linear(2, 2), Lora(rank=1), Factory(), "base", folder
            ),
        ),
        ("policy.kind: family", "vla", lambda folder: Factory().build({})),
        ("policy.kind: family", "vla", lambda folder: Factory().from_scratch({})),
        ("policy.kind: family", "vla", lambda folder: Factory().from_checkpoint(folder)),
        ("a tiny checkpoint", "vla", lambda folder: tiny_checkpoint.write("pi0", folder)),
        ("policy.kind: language", "agentic", lambda folder: LanguagePolicy(TextSpec())),
    ],
)
def test_without_their_packages_the_extra_is_named_first(
    feature, extra, call, tmp_path, monkeypatch
):
    monkeypatch.setattr(extras, "missing", lambda extra: [f"{extra}-package"])
    with pytest.raises(RlinfError) as refused:
        call(tmp_path)
    assert str(refused.value).startswith(
        f"{feature}: expected the extra '{extra}', which lacks {extra}-package here. Run: "
    )
    assert [*tmp_path.iterdir()] == []


def test_json_files_have_a_key_in_a_line(tmp_path):
    document = {"a": [1, 2], "b": {"c": None}}
    text = json_text(document)
    assert text.splitlines()[:2] == ["{", ' "a": [']
    (tmp_path / "config.json").write_text(text)
    assert read_json(tmp_path / "config.json") == document
