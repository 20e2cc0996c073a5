"""``rlinf serve`` and ``rlinf vla``: serve a policy, and write folders of VLA models."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
from functools import partial
from pathlib import Path

from rlinf_core.core import extras
from rlinf_core.core.connections import is_loopback
from rlinf_core.core.outputs import any_folder, empty_folder
from rlinf_core.recipes import load_recipe


def serve(
    policy: Path,
    host: str,
    port: int,
    max_batch: int,
    max_wait_ms: float,
    device: str,
    precision: str,
    execution: str,
    recipe: str | None = None,
    api_key_file: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    plaintext: bool = False,
    lerobot_port: int | None = None,
) -> None:
    """Load and warm up a policy, and serve it until Ctrl-C. Newer files of a folder replace it."""
    if recipe is not None:
        load_recipe(recipe)  # policy files may name its kinds
    extras.require("policy", "rlinf serve")

    from rlinf_core.core.errors import ServingError
    from rlinf_core.deploy.serving import access, lerobot
    from rlinf_core.deploy.serving.server import PolicyServer, serve_until_cancelled
    from rlinf_core.deploy.serving.weights import Weights
    from rlinf_core.policies import inference
    from rlinf_core.policies.torch_device import device_of

    if (tls_cert is None) != (tls_key is None):
        raise ServingError(
            "--tls-cert: expected --tls-cert and --tls-key together, got only one of them"
        )
    key = access.read_key(api_key_file) if api_key_file else ""
    if key and lerobot_port is not None:
        raise ServingError(
            "--lerobot-port: expected no --api-key-file with it, since LeRobot's client sends no "
            "key. Every user of this machine could then query the policy without one"
        )
    tls = access.server_context(tls_cert, tls_key) if tls_cert and tls_key else None
    access.check_exposure(host, tls is not None, key, plaintext)
    sizes = {1, max_batch} if execution == "eager" else inference.padded_sizes(max_batch)
    weights = Weights(
        policy,
        device_of(device),
        sorted(sizes),
        partial(inference.prepare, precision=precision, execution=execution, key="--"),
    )
    server = PolicyServer(weights, max_batch, 1e-3 * max_wait_ms, _print_line, key, tls)
    newest = weights.newest

    def ready(at: int) -> None:
        spec = newest.policy.spec
        _print_line(
            f"{'wss' if tls else 'ws'}://{host}:{at} serves version {newest.number} "
            f"({newest.policy.config.kind}) on {newest.policy.device}: "
            f"{', '.join(item.name for item in spec.observation)} to chunks of "
            f"{newest.policy.config.horizon} ({', '.join(spec.action.names)}). Ctrl-C stops it"
        )
        if not is_loopback(host) and plaintext:
            _print_line(
                f"serve: listens on {host}:{at} with --plaintext: "
                f"{'clients need a key' if key else 'no key is required'}, "
                f"{'encrypted' if tls else 'without encryption'}. Use this only on a private "
                "network"
            )

    async def until_stopped() -> None:
        """Serve until the event loop gets the signal.

        The event loop handles it, because a callback could swallow an exception of a signal
        handler.
        """
        other = None if lerobot_port is None else lerobot.serve_lerobot(server, lerobot_port)
        serving = asyncio.ensure_future(serve_until_cancelled(server, host, port, ready, other))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):  # stopped before the start
            await serving

    asyncio.run(until_stopped())
    raise KeyboardInterrupt  # exit code 130, like other commands


def _print_line(line: str) -> None:
    print(line, flush=True)


def adapters(policy: Path, folder: Path) -> None:
    """Write the adapters of a policy file, and print their usage."""
    from rlinf_core.core.errors import SpecError
    from rlinf_core.policies.policy_folder import newest_policy
    from rlinf_core.policies.pretrained import adapter_files
    from rlinf_core.policies.pretrained.action_tokens import ActionTokens
    from rlinf_core.policies.pretrained.flow_matching import FlowMatching
    from rlinf_core.policies.serialization import load_policy

    empty_folder(folder)
    loaded = load_policy(newest_policy(policy))
    if not isinstance(loaded, FlowMatching | ActionTokens):
        raise SpecError(
            f"vla adapters: expected the policy of a published model, got a {loaded.config.kind}"
        )
    base = loaded.config.checkpoint
    adapter_files.save(loaded.network, loaded.config.lora, loaded.factory, base, folder)
    print(
        f"{folder}: LoRA of rank {loaded.config.lora.rank} on {base or 'a network from scratch'}. "
        f"Use it with PeftModel.from_pretrained(model, {str(folder)!r}), or by policy.adapters "
        "with policy.checkpoint"
    )


def lerobot(policy: Path, folder: Path) -> None:
    """Write a policy file as a LeRobot folder, and print how to load it."""
    from rlinf_core.core.errors import SpecError
    from rlinf_core.policies.policy_folder import newest_policy
    from rlinf_core.policies.pretrained.visuomotor import Visuomotor
    from rlinf_core.policies.serialization import load_policy

    empty_folder(folder)
    loaded = load_policy(newest_policy(policy))
    if not isinstance(loaded, Visuomotor):
        raise SpecError(
            f"vla lerobot: expected a policy of kind act or diffusion, got a {loaded.config.kind}"
        )
    loaded.save_folder(folder)
    print(
        f"{folder}: LeRobot's {loaded.config.kind}, in the task's units. LeRobot loads it: "
        f"--policy.path={folder}"
    )


def policy_file(recipe: str, overrides: list[str], folder: Path) -> None:
    """Write the recipe's policy as it begins, and say how it is used."""
    extras.require("policy", "rlinf vla policy")

    from rlinf_core.core.errors import RecipeError
    from rlinf_core.policies import make_policy
    from rlinf_core.policies.policy_folder import free_version, newest_version, policy_name
    from rlinf_core.policies.serialization import save_policy
    from rlinf_core.recipes import station_task

    any_folder(folder)
    loaded = load_recipe(recipe, overrides)
    checkpoint = getattr(loaded.policy, "checkpoint", "")
    if not checkpoint:
        raise RecipeError("vla policy: expected policy.checkpoint, a published folder, got none")
    version = free_version(folder, newest_version(folder))
    policy = make_policy(station_task(loaded).spec, loaded.policy)
    file = save_policy(policy, folder / policy_name(version), version=version)
    print(
        f"{file}: {loaded.policy.kind} of {checkpoint}. It is used by\n"
        f"  rlinf eval {file} --recipe {recipe}\n  rlinf serve {file}"
    )


def tiny(
    family: str,
    folder: Path,
    tokenizer: Path | None,
    horizon: int,
    actions: int,
    state: int,
    seed: int,
) -> None:
    """Write a tiny checkpoint of a published family, and print its usage."""
    from rlinf_core.config.overrides import quote_value
    from rlinf_core.core.errors import PolicyFileError, RecipeError, nearest
    from rlinf_core.policies.pretrained.tiny_checkpoint import FAMILIES, OFT, write

    if family not in FAMILIES:
        raise RecipeError(
            f"family: expected one of {', '.join(FAMILIES)}, got "
            f"'{family}'{nearest(family, FAMILIES)}"
        )
    try:
        text = tokenizer.read_text() if tokenizer else ""
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyFileError(
            f"tokenizer: expected a tokenizer.json, got {tokenizer}: {error}"
        ) from error
    write(family, folder, None, text, horizon, actions, state, seed)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    keys: dict[str, object] = {
        "kind": FAMILIES[family].kind,
        "checkpoint": quote_value(folder.resolve()),
    }
    if FAMILIES[family].horizon or horizon:
        keys["horizon"] = horizon or FAMILIES[family].horizon
    if family == OFT:
        keys |= {"decoding": "regression", "state": "true"}
    policy_override = f"policy={{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}"
    print(
        f"{folder}: {family}, {size:.1f} MB, random weights. It is used by\n"
        f"  --set {shlex.quote(policy_override)}"
    )
