"""A checkpoint's folder as people have it: with files of before, with pointers of Git LFS, with
what was cut.
"""

import json

import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies import policy_kind
from rlinf_core.policies.pretrained.huggingface import INDEX, load_weights, weight_files
from rlinf_core.policies.pretrained.tiny_checkpoint import FAMILIES, write
from tests.policies.test_pi0 import SPEC

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 17\n"
KINDS = [
    "pi0",
    "pi05",
    "smolvla",
    "groot",
    "groot_n1_6",
    "groot_n1_7",
    "qwen_vl",
    "openvla",
    "pi0_fast",
    "xvla",
]


def shards(folder, count, value):
    """Return a set of files, of a weight each; returns what an index says of them."""
    names = {
        f"w{number}": f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        for number in range(count)
    }
    for name, file in names.items():
        save_file({name: torch.full((2,), value)}, folder / file)
    return names


def test_the_index_says_which_files_are_read(tmp_path):
    shards(tmp_path, 3, 7.0)
    names = shards(tmp_path, 2, 1.0)
    with pytest.raises(
        PolicyFileError, match=f"expected one set of weights, found .* and no {INDEX}"
    ):
        load_weights(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    weights = load_weights(tmp_path)
    assert weights.keys() == {"w0", "w1"} and all(
        (tensor == 1.0).all() for tensor in weights.values()
    )
    (tmp_path / names["w1"]).unlink()
    with pytest.raises(
        PolicyFileError,
        match=f"expected the files that {INDEX} names, found no model-00002-of-00002",
    ):
        load_weights(tmp_path)


def test_one_set_without_an_index_is_read(tmp_path):
    names = shards(tmp_path, 2, 1.0)
    assert load_weights(tmp_path).keys() == names.keys()
    (tmp_path / names["w0"]).unlink()
    with pytest.raises(
        PolicyFileError, match="expected 2 files of weights, as their names say, found 1"
    ):
        load_weights(tmp_path)
    (tmp_path / names["w1"]).rename(tmp_path / "model.safetensors")
    assert load_weights(tmp_path).keys() == {"w1"}
    (tmp_path / "model_ema.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    with pytest.raises(PolicyFileError, match="expected one set of weights"):
        load_weights(tmp_path)


@pytest.mark.parametrize(
    "index_text",
    [
        "[]",
        "{",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": {"w": "../x.safetensors"}}',
        '{"weight_map": {"w": 3}}',
        POINTER,
    ],
)
def test_an_index_that_cannot_be_is_refused(index_text, tmp_path):
    shards(tmp_path, 1, 1.0)
    (tmp_path / INDEX).write_text(index_text)
    with pytest.raises(PolicyFileError, match=INDEX):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    "name, words",
    [
        ("pytorch_model.bin", "expected model.*safetensors, found pytorch_model.bin"),
        ("notes.txt", "found none"),
    ],
)
def test_weights_in_another_format_are_named(name, words, tmp_path):
    (tmp_path / name).write_text("x")
    with pytest.raises(PolicyFileError, match=words):
        load_weights(tmp_path)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named(wrong, tmp_path):
    save_file(
        {"fine": torch.zeros(2), "off": torch.tensor([0.0, wrong])}, tmp_path / "model.safetensors"
    )
    with pytest.raises(PolicyFileError, match="expected finite weights, got NaN or Inf in 'off'"):
        load_weights(tmp_path)


ODD = {
    "half": {"w": torch.linspace(-1.0, 1.0, 6).reshape(3, 2).half()},
    "bfloat16": {"w": torch.linspace(-1.0, 1.0, 5).bfloat16()},
    "double": {"w": torch.linspace(-1.0, 1.0, 4, dtype=torch.float64)},
    "whole numbers": {"w": torch.arange(6).int()},
    "bool": {"w": torch.tensor([True, False])},
    "float8": {"w": torch.ones(4).to(torch.float8_e4m3fn)},
    "scalar": {"w": torch.tensor(3.0)},
    "empty": {"w": torch.zeros(0, 7), "v": torch.ones(1)},
    "names": {
        "": torch.ones(1),
        "a/b": torch.zeros(1),
        "Gewicht-\u00fc": torch.ones(2),
        "__m": torch.ones(3),
    },
    "subnormal": {"w": torch.tensor([1e-40, -0.0])},
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_weights_are_those_that_safetensors_own_reader_reads(odd, tmp_path):
    save_file(ODD[odd], tmp_path / "model.safetensors", {"format": "pt", "note": "\u00fc" * 300})
    with safe_open(
        tmp_path / "model.safetensors", "numpy" if "8" not in odd and odd != "bfloat16" else "pt"
    ) as reader:
        expected = {
            name: torch.as_tensor(reader.get_tensor(name)).float()
            for name in reader.keys()  # noqa: SIM118
        }  # noqa: SIM118
    weights = load_weights(tmp_path)
    assert weights.keys() == expected.keys() == ODD[odd].keys()
    for name, tensor in weights.items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, expected[name])


def spoiled(header, data=b"\0" * 8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(start=0, end=8, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0",
        (1 << 62).to_bytes(8, "little") + b"{}",
        spoiled(b"{"),
        spoiled([]),
        spoiled({"w": 3}),
        spoiled({"w": entry(end=4)}),
        spoiled({"w": entry(shape=(3,))}),
        spoiled({"w": entry(shape=(-2,))}),
        spoiled({"w": entry(dtype="F33")}),
        spoiled({"w": entry(0, 8), "v": entry(4, 12)}, b"\0" * 12),
        spoiled({"w": entry(4, 12)}, b"\0" * 12),
        spoiled({"w": entry(8, 0)}),
        spoiled({"w": entry()}, b"\0" * 9),
        spoiled({"w": entry()}, b"\0" * 7),
        spoiled({"w": entry(shape=(1 << 40, 1 << 40))}),
        spoiled(b"\xff{}"),
        spoiled({"w": entry(), "__metadata__": {"format": 3}}),
        b"PK\3\4" + b"\0" * 60,
    ],
)
def test_a_file_that_safetensors_own_reader_refuses_is_refused_by_its_name(data, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(SafetensorError):
        load_file(path)
    with pytest.raises(PolicyFileError) as refused:
        load_weights(tmp_path)
    assert str(refused.value).startswith(
        f"policy.checkpoint {path}: expected a whole safetensors file, got: "
    )
    assert str(refused.value).endswith("Copy it again")


@pytest.fixture(scope="module", params=KINDS)
def tiny(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    write(request.param, folder)
    return request.param, folder


def begun(kind, folder):
    """Return a policy of the folder."""
    part = policy_kind(kind)
    horizon = {"horizon": FAMILIES[kind].horizon} if FAMILIES[kind].horizon else {}
    return part.Policy(SPEC, part.Config(checkpoint=str(folder), **horizon))


def test_every_file_that_is_a_pointer_or_cut_is_named(tiny):
    kind, folder = tiny
    for path in sorted(
        entry for entry in folder.rglob("*") if entry.suffix in (".json", ".safetensors")
    ):
        if path.name in (
            "generation_config.json",
            "tokenizer_config.json",
            "preprocessor_config.json",
        ):
            continue
        before = path.read_bytes()
        try:
            path.write_text(POINTER)
            with pytest.raises(PolicyFileError) as refused:
                begun(kind, folder)
            assert path.name in str(refused.value) and "git lfs pull" in str(refused.value), (
                refused.value
            )
            path.write_bytes(before[: len(before) // 2])
            with pytest.raises(PolicyFileError) as refused:
                begun(kind, folder)
            assert "policy.checkpoint" in str(refused.value), path
        finally:
            path.write_bytes(before)


def test_a_weight_of_nan_is_refused_by_every_kind(tiny):
    kind, folder = tiny
    (file,) = folder.glob("model*.safetensors")
    before, weights = file.read_bytes(), load_file(file)
    weights[sorted(weights)[0]].view(-1)[0] = float("nan")
    save_file(weights, file, {"format": "pt"})
    try:
        with pytest.raises(PolicyFileError, match="expected finite weights"):
            begun(kind, folder)
    finally:
        file.write_bytes(before)
