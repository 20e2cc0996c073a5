"""Compare published families with their reference implementations: same folder, same observation.

    make references
    python benchmarks/vla_references.py --json benchmarks/results/vla_references.json

LeRobot runs in .venvs/references. There its own classes make tiny policies with random weights and
write them in their published layout (vla_reference_models). This process loads the same folders,
and both compute actions for the same observations from the same noise. The benchmark does not cover
published weights, GR00T before N1.7 (tests/policies/groot_n1_6_itself.json), OpenVLA and Qwen2.5-VL
(tests/policies), policies with a history, or success on a task.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.vla_reference_cases import (  # noqa: E402
    ACTION,
    CASES,
    EMBODIMENT,
    HORIZON,
    LEROBOT_KINDS,
    PIXELS,
    SCALE,
    SENTENCES,
    SIZE,
    SIZE_OF_NOISE,
    STATE,
    observations,
    shapes_of,
    square_pictures,
    statistics,
)
from benchmarks.vla_reference_table import UNMEASURED  # noqa: E402

PYTHON = Path(os.environ.get("RLINF_REFERENCES", ROOT / ".venvs/references")) / "bin/python"
MAX_DIFFERENCE = 1e-5


def square_observation():
    """Return the specs and observations of square pictures."""
    import torch

    from rlinf_core.policies.base import Observation
    from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

    pictures = [ArraySpec(name, (SIZE, SIZE, 3), "uint8", "", (0.0,), (255.0,)) for name in PIXELS]
    spec = StationSpec(
        (ArraySpec("state", (STATE,)), *pictures),
        ActionSpec("tcp_delta", ("x", "y", "z"), (SCALE,) * ACTION, ("m",) * ACTION),
        10.0,
    )
    return spec, Observation(
        torch.from_numpy(observations()["state"]),
        {name: torch.from_numpy(picture) for name, picture in square_pictures().items()},
        tuple(SENTENCES),
    )


def act_by_lerobot(folder: Path) -> np.ndarray:
    """Return the chunk of a folder by ``policy.kind: lerobot``, in the data set's units."""
    from rlinf_core.policies import make_policy
    from rlinf_core.policies.isolated.lerobot import Config

    os.environ["RLINF_PYTHON_LEROBOT"] = str(PYTHON)
    spec, observed = square_observation()
    policy = make_policy(
        spec, Config(checkpoint=str(folder), horizon=HORIZON, stochastic_eval=False)
    )
    return SCALE * policy.act(observed, explore=False).actions.numpy()


def lerobot_difference(folder: Path) -> float:
    """Return the largest difference of the folder's actions by ``policy.kind: lerobot``."""
    chunk = act_by_lerobot(folder)
    return float(np.abs(chunk - np.load(folder / "answers.npz")["chunk"]).max())


def compare_visuomotor(kind: str, folder: Path) -> dict:
    """Compare ``policy.kind: act`` or ``diffusion`` with LeRobot, both ways."""
    import torch

    from rlinf_core.policies import policy_kind

    (numbers,) = folder.glob("policy_preprocessor_step_*_normalizer_processor.safetensors")
    keys = {"horizon": HORIZON} if kind == "act" else {"horizon": 7, "n_obs_steps": 2}
    spec, observed = square_observation()
    part = policy_kind(kind)
    policy = part.Policy(
        spec,
        part.Config(
            checkpoint=str(folder), statistics=str(numbers), n_action_steps=HORIZON, **keys
        ),
    ).eval()

    def act() -> np.ndarray:
        torch.manual_seed(0)
        with torch.no_grad():
            return SCALE * policy.act(observed, explore=False).actions.numpy()[:, :HORIZON]

    expected, exported = np.load(folder / "answers.npz")["chunk"], folder / "exported"
    difference = float(np.abs(act() - expected).max())
    result = {"family": kind, "difference": difference, "unread": []}  # else it is refused
    if not exported.exists():
        policy.save_folder(exported)
    result["exported"] = float(np.abs(act_by_lerobot(exported) - act()).max())
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    goal = torch.full((len(observed), keys["horizon"] * ACTION), 0.5)
    policy.imitation_loss(policy.to_batch(observed), goal).backward()
    torch.optim.SGD(policy.parameters(), 1e-2).step()
    result["sft_step"] = max(
        float((after.detach() - then).abs().max())
        for after, then in zip(policy.parameters(), before, strict=True)
    )
    return result


def compare(case: str, folder: Path) -> dict:
    """Return the largest difference of our answers in the data set's units."""
    import torch

    from rlinf_core.policies import policy_kind
    from rlinf_core.policies.base import Observation
    from rlinf_core.policies.pretrained import adapter_files, lerobot, openpi
    from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

    family, changes = CASES[case]
    answers, given = np.load(folder / "answers.npz"), observations(family)
    pictures = [
        ArraySpec(name, shape, "uint8", "", (0.0,), (255.0,), f"camera/{name}/image", "image")
        for name, shape in shapes_of(family).items()
    ]
    spec = StationSpec(
        (ArraySpec("state", (STATE,)), *pictures),
        ActionSpec("tcp_delta", ("x", "y", "z"), (SCALE,) * ACTION, ("m",) * ACTION),
        10.0,
    )
    if family != "groot_n1_7":
        (statistics_file,) = folder.glob(
            "policy_preprocessor_step_*_normalizer_processor.safetensors"
        )
    elif "processor" in changes:
        statistics_file = folder / "statistics.json" / "ours"
    else:
        statistics_file = folder / "stats.json"
        statistics_file.write_text(json.dumps(statistics()))
    part = policy_kind(family)
    steps = {
        "num_inference_steps": "flow_steps",
        "num_steps": "flow_steps",
        "num_denoising_steps": "flow_steps",
        "num_inference_timesteps": "flow_steps",
        "tokenizer_max_length": "tokens",
        "max_decoding_steps": "max_decoding_steps",
        "domain": "domain",
    }
    keys = {steps[key]: value for key, value in changes.items() if key in steps}
    keys |= {"checkpoint": str(folder), "horizon": HORIZON, "statistics": str(statistics_file)}
    if family == "groot_n1_7":
        keys["embodiment"] = EMBODIMENT
    policy, theirs = (
        part.Policy(spec, part.Config(**keys, **more)).eval()
        for more in ({}, {"adapters": str(folder / "theirs")})
    )
    observation = Observation(
        torch.from_numpy(given["state"]),
        {name: torch.from_numpy(given[name]) for name in shapes_of(family)},
        tuple(SENTENCES),
    )

    def act(actor) -> np.ndarray:
        with torch.no_grad():
            if family == "pi0_fast":
                chunk = actor.act(observation, explore=False).actions
            else:
                noise = torch.from_numpy(given["noise"])[..., : SIZE_OF_NOISE.get(family)]
                chunk = actor.decode(actor.to_batch(observation), noise)
        return (SCALE * chunk).view(answers["chunk"].shape).numpy()

    def loss_of(actor) -> float:
        noise = given["noise"][..., : SIZE_OF_NOISE.get(family)]
        drawn = iter([noise, given["uniform"]])
        patch = mock.patch(
            "rlinf_core.policies.sharding.noise", lambda *_: torch.from_numpy(next(drawn))
        )
        demonstrated = torch.from_numpy(given["action"] / SCALE).flatten(1)
        with patch, torch.no_grad():
            return float(actor.imitation_loss(actor.to_batch(observation), demonstrated))

    loss = loss_of(policy)
    exported = folder / "exported"
    if "exported" not in UNMEASURED.get(family, {}):
        policy.factory.save_folder(policy.network, policy.tokenizer, exported)
    explores = {} if family == "pi0_fast" else {"sde_noise": 0.3}
    learned = learning_steps(
        part.Policy(
            spec,
            part.Config(
                **keys | {"max_decoding_steps": 64}
                if family == "pi0_fast"
                else {**keys, **explores}
            ),
        ),
        observation,
    )

    # adapters that are small enough change a sentence's loss, and none of its likeliest tokens
    judged = "loss" if family == "pi0_fast" else "chunk"
    chunk, changed = act(policy), loss_of(theirs) if judged == "loss" else act(theirs)
    read_adapters = float(np.abs(changed - answers[f"adapted_{judged}"]).max())
    ours = part.Policy(spec, part.Config(**keys, lora={"rank": 2, "alpha": 6.0})).eval()
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(len(name)))
    adapter_files.save(ours.network, ours.config.lora, ours.factory, str(folder), folder / "ours")
    written = loss_of(ours) if judged == "loss" else act(ours)
    np.savez(folder / "written.npz", **{judged: written})
    read = {
        "type",
        "normalization_mapping",
        *lerobot.EXPECTED,
        *lerobot.SETTINGS,
        *lerobot.WITHOUT_EFFECT,
        *openpi.SIZES,
    }
    network = importlib.import_module(f"rlinf_core.policies.pretrained.{family}.network")
    read |= {
        *getattr(network, "KEYS", ()),
        *(() if family == "pi0" else network.SMALLEST),
        *getattr(network, "WITHOUT_EFFECT", ()),
        *getattr(network, "SETTINGS", ()),
        *getattr(network, "SUPPORTED", ()),
        "vlm_model_name",
    }
    unread = [
        key
        for key in json.loads((folder / "keys.json").read_text())
        if key not in read
        and not key.startswith(("optimizer_", "scheduler_"))
        and key != "time_sampling_beta_beta"
    ]
    return {
        "family": family,
        "sft_loss": abs(loss - float(answers["loss"])) / max(1.0, float(answers["loss"])),
        **learned,
        "difference": float(np.abs(chunk - answers["chunk"]).max()),
        "largest": float(np.abs(answers["chunk"]).max()),
        "unread": unread,
        "peft_read": read_adapters,
        "peft_effect": float(np.abs(answers[f"adapted_{judged}"] - answers[judged]).max()),
    }


def learning_steps(policy, observation) -> dict:
    """Compare a step of SFT and of GRPO: moved weights, and recomputed log-probabilities."""
    import torch

    from rlinf_core.algorithms import algorithm
    from rlinf_core.algorithms.common.rollout import Rollout

    def moved(step: Callable[[], object]) -> float:
        before = [parameter.detach().clone() for parameter in policy.parameters()]
        step()
        return max(
            float((now.detach() - then).abs().max())
            for now, then in zip(policy.parameters(), before, strict=True)
        )

    batch, draw = policy.to_batch(observation), torch.Generator().manual_seed(0)
    chunk = policy.act(observation, True, draw)
    with torch.no_grad():
        again = policy.log_probs(batch, chunk.drawn)[0]
    settings = algorithm("grpo").Config(
        epochs=1, group=len(observation), minibatches=1, level="chunk"
    )
    learner, one = algorithm("grpo").Learner(policy, settings, 0), torch.ones(1, len(observation))
    rewards = torch.zeros(1, len(observation), HORIZON)
    rewards[..., 0] = torch.arange(len(observation))
    observations = {key: value[None] for key, value in batch.items()}
    drawn, log_probs = chunk.drawn[None], chunk.log_probs.flatten(1)[None]
    steps = HORIZON * one
    rollout = Rollout(
        observations, observations, drawn, log_probs, rewards, steps, one, one, one, 0 * one
    )
    rl = moved(lambda: learner.update(rollout))
    optimizer = torch.optim.SGD(policy.parameters(), 1e-2)

    def cloned() -> None:
        policy.imitation_loss(batch, chunk.actions.flatten(1), draw).backward()
        optimizer.step()

    optimizer.zero_grad()
    return {
        "log_probs": float((again - chunk.log_probs).abs().max()),
        "rl_step": rl,
        "sft_step": moved(cloned),
    }


def write_tokenizers(root: Path, cases: Sequence[str], kinds: Sequence[str]) -> None:
    """Write a small tokenizer to every place in which LeRobot's classes look for one."""
    from rlinf_core.policies.pretrained.tiny_checkpoint import FAMILIES, byte_tokenizer

    texts = {kind: byte_tokenizer(FAMILIES["smolvla"]) for kind in kinds}
    paths = {root / "kinds" / kind / "vlm": text for kind, text in texts.items()}
    for case in cases:
        text = byte_tokenizer(FAMILIES[CASES[case][0]])
        paths |= dict.fromkeys((root / case, root / case / "vlm", root / case / "cosmos"), text)
    for folder, text in paths.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(text)


def make_references(root: Path, cases: Sequence[str], kinds: Sequence[str] = ()) -> None:
    """Run LeRobot's classes in their environment."""
    if cases or kinds:
        module = "benchmarks.vla_reference_models"
        folders = [*cases, *(f"kinds/{kind}" for kind in kinds)]
        subprocess.run(
            [PYTHON, "-m", module, str(root), *folders],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        )


def compare_written(folder: Path) -> dict[str, float]:
    """Compare LeRobot's answers with our adapters and our exported folder, if it has read them."""
    written, read = np.load(folder / "written.npz"), np.load(folder / "ours.npz")
    result = {"peft_written": max(float(np.abs(written[key] - read[key]).max()) for key in written)}
    if (folder / "exported.npz").exists():
        exported, answers = np.load(folder / "exported.npz"), np.load(folder / "answers.npz")
        result["exported"] = float(np.abs(exported["chunk"] - answers["chunk"]).max())
    return result


def compare_all(root: Path, cases: Sequence[str], kinds: Sequence[str]) -> tuple[dict, dict]:
    """Return the results by case, and the differences of policy.kind lerobot by kind."""
    write_tokenizers(root, cases, kinds)
    make_references(
        root,
        [case for case in cases if not (root / case / "answers.npz").exists()],
        [kind for kind in kinds if not (root / "kinds" / kind / "answers.npz").exists()],
    )
    results = {}
    lerobot_differences = {kind: lerobot_difference(root / "kinds" / kind) for kind in kinds}
    print(f"policy.kind lerobot: {lerobot_differences}", flush=True)
    for kind in ("act", "diffusion"):
        if kind in kinds:
            results[kind] = compare_visuomotor(kind, root / "kinds" / kind)
            print(f"{kind}: {results[kind]}", flush=True)
    for case in cases:
        results[case] = compare(case, root / case)
    # one of each family: LeRobot reads what we have written
    plain = [case for case in cases if case == CASES[case][0]]
    make_references(root, plain)
    for case in cases:
        if case in plain:
            results[case] |= compare_written(root / case)
        print(f"{case}: {results[case]}", flush=True)
    return results, lerobot_differences


def summarise(results: dict, lerobot_differences: dict[str, float]) -> dict:
    """Return the figures for the results file."""
    peft = [
        result[key]
        for result in results.values()
        for key in ("peft_read", "peft_written")
        if key in result
    ]
    unread = {key for result in results.values() for key in result["unread"]}
    return {
        "families": sorted({result["family"] for result in results.values()}),
        "worst_difference": max((result["difference"] for result in results.values()), default=0.0),
        "layouts_loaded": len(results),
        "peft_round_trips": sum(value <= MAX_DIFFERENCE for value in peft),
        "worst_peft_difference": max(peft, default=0.0),
        "config_keys_unread": sorted(unread),
        "played": lerobot_differences,
        "cases": results,
    }


def main() -> None:
    """Compare all cases, and fail if a difference is too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument(
        "--folder", type=Path, help="keeps the reference's folders, and takes those that are there"
    )
    parser.add_argument("--cases", nargs="*", default=[*CASES], choices=[*CASES])
    parser.add_argument(
        "--kinds",
        nargs="*",
        default=[*LEROBOT_KINDS],
        choices=[*LEROBOT_KINDS],
        help="types for policy.kind lerobot",
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = options.folder or stack.enter_context(tempfile.TemporaryDirectory())
        results, lerobot_differences = compare_all(Path(root), options.cases, options.kinds)
    summary = summarise(results, lerobot_differences)
    print(json.dumps({key: value for key, value in summary.items() if key != "cases"}))
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    worst = max(
        summary["worst_difference"],
        summary["worst_peft_difference"],
        *lerobot_differences.values(),
    )
    if worst > MAX_DIFFERENCE or summary["config_keys_unread"]:
        sys.exit(f"expected differences of at most {MAX_DIFFERENCE:g} and no unread key")


if __name__ == "__main__":
    main()
