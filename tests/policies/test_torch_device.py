"""The device of networks, and what it can do, is named in the words of the recipe's key."""

import math
from types import SimpleNamespace

import pytest
import torch

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.policies import torch_device
from rlinf_core.policies.torch_device import (
    check_bfloat16,
    check_compiles,
    check_device,
    device_of,
    restore,
)

CPU = torch.device("cpu")


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine whose accelerators are two of NVIDIA."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:1"])
def test_a_device_that_is_there_has_its_name(name, two_gpus):
    assert device_of(name) == torch.device(name)
    assert device_of("auto") == torch.device("cuda")


@pytest.mark.parametrize("name", ["cuda:2", "mps", "cpu:1", "gpu", "meta"])
def test_a_device_that_is_not_there_is_refused(name, two_gpus):
    with pytest.raises(RlinfError) as refused:
        device_of(name)
    assert str(refused.value) == (
        f"device: expected auto or one of cpu, cuda:0, cuda:1 on this machine, got '{name}'"
    )


def test_without_an_accelerator_the_cpu_is_taken(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert device_of("auto") == CPU
    with pytest.raises(RlinfError, match="expected auto or one of cpu on this machine, got 'cuda'"):
        device_of("cuda")


def test_a_generator_goes_on_or_is_seeded_anew_on_another_kind_of_device():
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    state = generator.get_state()
    expected = torch.rand(4, generator=generator)
    for saved in (state, state.numpy()):
        restore(generator, saved, 7)
        assert torch.equal(torch.rand(4, generator=generator), expected)
    restore(generator, torch.zeros(16, dtype=torch.uint8), 7)  # the size of CUDA's
    assert torch.equal(
        torch.rand(4, generator=generator),
        torch.rand(4, generator=torch.Generator().manual_seed(7)),
    )


@pytest.mark.parametrize(
    "installed, visible, others, most",
    [
        (4, None, True, 4),
        (4, "0,2", False, 2),
        (4, "1,,3", False, 2),
        (4, "", False, 0),
        (4, "0,1,2,3,4,5", False, 4),
        (0, None, False, 0),
        (0, None, True, math.inf),
        (None, None, False, 0),
        (None, "0", True, math.inf),
    ],
)
def test_gpus_are_counted_without_torch(installed, visible, others, most, monkeypatch, tmp_path):
    def library(name):
        assert name == "libnvidia-ml.so.1"
        if installed is None:
            raise OSError(name)
        return SimpleNamespace(
            nvmlInit_v2=lambda: 0,
            nvmlShutdown=lambda: 0,
            nvmlDeviceGetCount_v2=lambda count: setattr(count._obj, "value", installed),
        )

    if others:
        (tmp_path / "dri").mkdir()
    monkeypatch.setattr(torch_device.ctypes, "CDLL", library)
    monkeypatch.setattr(
        torch_device, "Path", lambda folder, name: tmp_path / name if folder == "/dev" else None
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert torch_device.gpus() == most


@pytest.mark.parametrize(
    "gpus, name, accepted",
    [
        (2, "cuda", True),
        (2, "cuda:1", True),
        (2, "cuda:2", False),
        (1, "cuda:1", False),
        (0, "cuda", False),
        (0, "cpu", True),
        (0, "auto", True),
        (0, "mps:3", True),
        (math.inf, "cuda:9", True),
    ],
)
def test_a_recipes_gpu_is_one_of_the_machine(gpus, name, accepted, monkeypatch):
    monkeypatch.setattr(torch_device, "gpus", lambda: gpus)
    if accepted:
        return check_device("learner.device", name)
    with pytest.raises(RecipeError) as refused:
        check_device("learner.device", name)
    assert str(refused.value).startswith(
        f"learner.device: expected auto, cpu, or one of the {gpus} GPUs of this machine, got "
        f"'{name}'"
    )


def test_a_device_that_has_no_bfloat16_is_named_with_the_key(monkeypatch):
    check_bfloat16(CPU)
    with pytest.raises(
        RlinfError,
        match="^--precision: expected a device .* bfloat16 .* got meta: [^\n]*. Set --precision to "
        "float32, or device to another$",
    ):
        check_bfloat16(torch.device("meta"), "--precision")
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation
    )
    with pytest.raises(RlinfError, match="^learner.precision: .* got cuda:0: it would emulate it"):
        check_bfloat16(torch.device("cuda:0"))


def test_a_machine_that_cannot_compile_is_told_what_to_install_and_to_set():
    check_compiles(CPU, "eager")
    with pytest.raises(RlinfError) as refused:
        check_compiles(CPU, "no_such_backend")
    text = str(refused.value)
    assert text.startswith(
        "learner.compile: expected a machine on which torch.compile works, which needs a C++ "
        "compiler (g++) for cpu; got: "
    )
    assert "no_such_backend" in text and "\n" not in text
    assert text.endswith(". Install that, or set learner.compile to false")
    with pytest.raises(RlinfError, match="^--execution: .* or set --execution to eager$"):
        check_compiles(CPU, "no_such_backend", "--execution")
