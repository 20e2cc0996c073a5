"""Write the answers of NVIDIA's GR00T N1.6 for the folders of test_groot_n1_6.py.

    PYTHONPATH=. PYTHON tests/policies/groot_n1_6_itself.py ISAAC_GR00T FOLDER

PYTHON has transformers 4.51.3, diffusers, albumentations, torchvision, peft and lmdb. ISAAC_GR00T
is a checkout of NVIDIA/Isaac-GR00T with N1.6 (commit ead5283). Its weights are copied from FOLDER,
which rlinf wrote. Three things differ from NVIDIA's runs. Numbers are of 32 bits. Attention is
torch's: within each picture in the tower, where NVIDIA calls flash attention. Pictures get bars
only with ``letter_box_transform``, as in commit 9b37aa1.
"""

import importlib
import json
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from benchmarks import vla_reference_cases as references
from benchmarks.vla_reference_models import add_adapters

FAMILIES = {"groot_n1_6": "groot_n1_7", "groot_n1_6_plain": ""}  # whose pictures a case takes


def packed(module, query, key, value, mask, scaling=None, seq_len_list=None, **_):
    """Compute attention within each picture, in place of flash_attn_varlen_func."""
    parts = zip(*(x.split(seq_len_list, dim=2) for x in (query, key, value)), strict=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    attended = torch.cat([attend(*part, scale=scaling) for part in parts], dim=2)
    return attended.transpose(1, 2).contiguous(), None


def model_of(folder: Path):
    """Return NVIDIA's model with the weights of a folder."""
    from gr00t.configs.model.gr00t_n1d6 import Gr00tN1d6Config
    from gr00t.model.gr00t_n1d6.gr00t_n1d6 import Gr00tN1d6
    from safetensors.torch import load_file
    from transformers import PreTrainedModel
    from transformers.modeling_utils import no_init_weights

    def flash(cls, config, *_, **__):
        for part in ("text_config", "vision_config"):
            if hasattr(config, part):
                getattr(config, part)._attn_implementation = "flash_attention_2"
        return config

    name = "_autoset_attn_implementation"  # which looks for flash attention
    attention = mock.patch.object(PreTrainedModel, name, classmethod(flash))
    with attention, no_init_weights():
        config = Gr00tN1d6Config(**json.loads((folder / "config.json").read_text()))
        config._attn_implementation = "eager"
        model = Gr00tN1d6(config).float().eval()
    tower = importlib.import_module(type(model.backbone.model.vision_model).__module__)
    tower.flash_attention_forward_for_packing = packed
    model.backbone.model.language_model.config._attn_implementation = "eager"
    lacking, more = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    unused = ("backbone.model.vision_model.vision_model.head.", "backbone.model.language_model.lm_")
    assert not more and all(name.startswith(unused) for name in lacking), (lacking, more)
    return model


def processor_of(folder: Path):
    """Return NVIDIA's processor of a folder."""
    from gr00t.model.gr00t_n1d6.image_augmentations import LetterBoxPad, LetterBoxTransform
    from gr00t.model.gr00t_n1d6.processing_gr00t_n1d6 import Gr00tN1d6Processor

    path = folder / "processor_config.json"
    document = path.read_text()
    kwargs = json.loads(document)["processor_kwargs"]
    boxed = kwargs.pop("letter_box_transform")
    path.write_text(json.dumps({"processor_kwargs": kwargs}))
    try:
        processor = Gr00tN1d6Processor.from_pretrained(folder)
    finally:
        path.write_text(document)
    if not boxed:
        steps = processor.eval_image_transform.transforms
        steps[:] = [x for x in steps if not isinstance(x, LetterBoxPad | LetterBoxTransform)]
    return processor


def play(folder: Path) -> None:
    """Return the answers of a case, with adapters, and from the folder that our code wrote."""
    from gr00t.data.embodiment_tags import EmbodimentTag
    from gr00t.data.types import VLAStepData

    torch.manual_seed(0)
    model, processor = model_of(folder), processor_of(folder)
    family = FAMILIES[folder.name]
    given = references.observations(family)
    noise = torch.from_numpy(given["noise"][..., : model.config.max_action_dim])
    rows, tag = range(len(references.SENTENCES)), EmbodimentTag.NEW_EMBODIMENT

    def batch_of(row: int, learned: bool = False):
        groups = {"state": {"arm": slice(0, 3), "hand": slice(3, 5)}}
        groups["action"] = {"arm": slice(0, 2), "hand": slice(2, 3)}
        values = {"state": given["state"][row][None], "action": given["action"][row]}
        state, action = (
            {name: values[part][:, where] for name, where in groups[part].items()}
            for part in ("state", "action")
        )
        step = VLAStepData(
            images={name: [given[name][row]] for name in references.shapes_of(family)},
            states=state,
            actions=action if learned else {},
            text=references.SENTENCES[row],
            embodiment=tag,
        )
        processor.eval()
        return processor.collator([processor([{"content": step}])])["inputs"], state

    def act(actor) -> np.ndarray:
        chunks = []
        for row in rows:
            inputs, state = batch_of(row)
            drawn = noise[row : row + 1]
            with torch.no_grad(), mock.patch.object(torch, "randn", lambda *_, x=drawn, **__: x):
                point = actor.get_action(inputs)["action_pred"].numpy()
            played = processor.decode_action(point, tag, {k: v[None] for k, v in state.items()})
            chunks.append(np.concatenate([played["arm"], played["hand"]], axis=-1))
        return np.concatenate(chunks)

    def loss_of(actor) -> float:
        losses = []
        for row in rows:
            drawn, share = noise[row : row + 1], given["uniform"][row : row + 1] ** (1 / 1.5)
            time = torch.from_numpy((1 - share) * 0.999)
            head = actor.action_head
            inputs, _ = batch_of(row, True)
            with (
                torch.no_grad(),
                mock.patch.object(type(head), "sample_time", lambda *_, x=time, **__: x),
                mock.patch.object(torch, "randn", lambda *_, x=drawn, **__: x),
                mock.patch.object(head, "state_dropout_prob", 0.0),
            ):
                losses.append(float(actor(inputs)["loss"]))
        return float(np.mean(losses))

    numbers = {"chunk": act(model), "loss": loss_of(model)}
    exported = model_of(folder / "exported") if (folder / "exported").is_dir() else None
    if exported is not None:
        numbers["exported_chunk"] = act(exported)
    if (folder / "ours").is_dir():
        from peft import PeftModel

        ours = PeftModel.from_pretrained(model_of(folder), str(folder / "ours")).base_model.model
        numbers |= {"ours_chunk": act(ours), "ours_loss": loss_of(ours)}
    theirs = add_adapters(model, folder / "theirs")
    numbers |= {"adapted_chunk": act(theirs), "adapted_loss": loss_of(theirs)}
    np.savez(folder / "answers.npz", **numbers)


def main(checkout: str, folder: str) -> None:
    """Answer each case, with NVIDIA's code beside the case's own Eagle."""
    for case in sorted(path for path in Path(folder).iterdir() if (path / "config.json").exists()):
        for name in [name for name in sys.modules if name.split(".")[0] == "gr00t"]:
            del sys.modules[name]
        code = case / "code"
        shutil.rmtree(code, ignore_errors=True)
        shutil.copytree(Path(checkout) / "gr00t", code / "gr00t")
        (code / "gr00t/model/__init__.py").write_text("")  # it imports the training's libraries
        eagle = code / "gr00t/model/modules/nvidia/Eagle-Block2A-2B-v2"
        for name in ("vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"):
            (eagle / name).unlink()
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(case / "eagle" / name, eagle / name)
        sys.path.insert(0, str(code))
        play(case)
        sys.path.remove(str(code))


if __name__ == "__main__":
    # A torchvision of CUDA imports beside torch of a CPU once these operators have names.
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    main(*sys.argv[1:])
