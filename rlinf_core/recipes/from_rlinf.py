"""Convert a YAML of RLinf to a recipe (docs/coming_from/rlinf.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from rlinf_core.core.errors import RecipeError, nearest

Document = Mapping[str, Any]
TO_GOAL = "to_goal"
ENVS = 8  # default if neither the YAML nor a file in its folder has total_num_envs
CAMERAS = ("front", "wrist")  # of our simulated arms
# Beginnings of their environments' names, and our robot, task of the simulator, and task file
ENVIRONMENTS: dict[str, tuple[str, str, str]] = {
    "maniskill_pick_cube": ("panda_maniskill", "PickCube-v1", TO_GOAL),
    "maniskill_push_cube": ("panda_maniskill", "PushCube-v1", "push"),
    "maniskill_pull_cube": ("panda_maniskill", "PullCube-v1", "pull"),
    "maniskill_place_sphere": ("panda_maniskill", "PlaceSphere-v1", "stack"),
    "PickCube": ("panda_maniskill", "PickCube-v1", TO_GOAL),
    "PushCube": ("panda_maniskill", "PushCube-v1", "push"),
    "frankasim_pickcube": ("panda_gym_hil", "", TO_GOAL),
    "mujoco_pickcube": ("panda_gym_hil", "", TO_GOAL),
    "genesis_cubepick": ("panda_genesis", "", TO_GOAL),
}
# adv_type and loss_type, and our algorithm; an empty loss_type stands for any
ALGORITHMS: dict[tuple[str, str], str] = {
    ("gae", "actor_critic"): "ppo",
    ("embodied_gae", "actor_critic"): "ppo",
    ("gae", "decoupled_actor_critic"): "async_ppo",
    ("grpo", ""): "grpo",
    ("embodied_grpo", ""): "grpo",
    ("grpo_dynamic", ""): "dapo",
    ("reinpp", ""): "reinforce",
    ("reinpp_baseline", ""): "reinforce",
    ("embodied_sac", ""): "sac",
    ("embodied_dagger", ""): "dagger",
    ("gae", "embodied_dagger"): "dagger",
    ("", "offline_iql"): "iql",
}
ON_POLICY = ("ppo", "async_ppo", "grpo", "dapo", "reinforce")
OFF_POLICY = ("sac", "crossq", "rlpd", "sac_flow")
MODELS = {
    "mlp_policy": "mlp",
    "cnn_policy": "cnn",
    "flow_policy": "flow",
    "openvla": "openvla",
    "openvla_oft": "openvla",
    "openpi": "pi0",
}
LEVELS = {"action_level": "action", "chunk_level": "chunk"}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _positive(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number > 0 else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(value: Any) -> int | None:
    number = _positive(value)
    return None if number is None else int(number)


def _integer_of_any_sign(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


Convert = Callable[[Any], Any]
EVERY: dict[str, tuple[str, Convert]] = {
    "actor.seed": ("seed", _integer_of_any_sign),
    "algorithm.gamma": ("algorithm.discount", _number),
    "actor.optim.lr": ("algorithm.learning_rate", _positive),
    "actor.optim.clip_grad": ("algorithm.clip_gradient", _positive),
    "env.train.total_num_envs": ("simulation.environments", _integer),
}
ON_POLICY_KEYS: dict[str, tuple[str, Convert]] = {
    "algorithm.update_epoch": ("algorithm.epochs", _integer),
    "algorithm.clip_ratio_low": ("algorithm.clip_low", _positive),
    "algorithm.clip_ratio_high": ("algorithm.clip_high", _positive),
    "algorithm.clip_ratio_c": ("algorithm.dual_clip", _number),
    "algorithm.entropy_bonus": ("algorithm.entropy", _number),
    "algorithm.logprob_type": ("algorithm.level", LEVELS.get),
}
CRITIC_KEYS: dict[str, tuple[str, Convert]] = {
    "algorithm.gae_lambda": ("algorithm.gae_lambda", _number),
    "algorithm.value_clip": ("algorithm.value_clip", _positive),
    "algorithm.huber_delta": ("algorithm.huber", _positive),
    "algorithm.normalize_advantages": ("algorithm.normalise", _boolean),
}
GROUP_KEYS: dict[str, tuple[str, Convert]] = {
    "algorithm.group_size": ("algorithm.group", _integer),
    "algorithm.kl_beta": ("algorithm.reference_kl", _number),
}
OFF_POLICY_KEYS: dict[str, tuple[str, Convert]] = {
    "algorithm.tau": ("algorithm.target_rate", _positive),
    "algorithm.initial_alpha": ("algorithm.initial_temperature", _positive),
    "algorithm.target_entropy": ("algorithm.target_entropy", _number),
    "algorithm.backup_entropy": ("algorithm.entropy_backup", _boolean),
    "algorithm.critic_subsample_size": ("algorithm.target_critics", _integer),
    "algorithm.critic_actor_ratio": ("algorithm.actor_every", _integer),
    "actor.model.num_q_heads": ("algorithm.critics", _integer),
    "actor.global_batch_size": ("algorithm.batch_size", _integer),
}
CHUNK_KEYS: dict[str, tuple[str, Convert]] = {
    "actor.model.num_action_chunks": ("policy.horizon", _integer),
}
TOKEN_KEYS: dict[str, tuple[str, Convert]] = {
    "actor.model.unnorm_key": ("policy.statistics", lambda name: name or None),
    "algorithm.logprob_type": (
        "policy.token_log_probs",
        lambda level: True if level == "token_level" else None,
    ),
}
# They have a meaning for RLinf's processes alone
WITHOUT_MEANING = (
    "defaults",
    "hydra",
    "runner.logger",
    "runner.task_type",
    "env.enable_offload",
    "actor.fsdp",
    "actor.training_backend",
    "actor.micro_batch_size",
    "rollout.backend",
)


def convert(path: Path, station: Document | None = None) -> tuple[dict[str, Any], list[str]]:
    """Return a recipe of RLinf's YAML as a document, and the keys of theirs without a counterpart.

    Args:
        path: their file. Files that its ``defaults`` name are read if they are beside it.
        station: our robot, options and task, where their environment has no counterpart.

    Raises:
        RecipeError: the file, its algorithm, environment or policy has no counterpart.
    """
    source = _composed(path)
    if not {"algorithm", "env"} <= source.keys():
        raise RecipeError(
            f"{path}: expected a YAML of RLinf with algorithm and env, got "
            f"{', '.join(map(str, source)) or 'nothing'}. Recipes of rlinf need no import"
        )
    used: set[str] = set()
    name = _algorithm(path, source, used)
    recipe: dict[str, Any] = {"name": path.stem, "algorithm": {"name": name}}
    recipe["station"] = dict(station) if station else _station(path, source, used)
    recipe["policy"] = _policy(path, source, name, used)
    if _model(source) == "cnn_policy":
        used.add("actor.model.image_num")
        cameras = _integer(_at(source, "actor.model.image_num")) or 1
        recipe["station"]["observe_cameras"] = list(CAMERAS[:cameras])
    fields = import_module(f"rlinf_core.algorithms.{name}").Config.model_fields
    for table, applies in (
        (EVERY, True),
        (OFF_POLICY_KEYS, name in OFF_POLICY),
        (ON_POLICY_KEYS, name in ON_POLICY),
        (CRITIC_KEYS, name in ("ppo", "async_ppo")),
        (GROUP_KEYS, name in ("grpo", "dapo", "reinforce")),
        (CHUNK_KEYS, recipe["policy"]["kind"] in ("openvla", "pi0")),
        (TOKEN_KEYS, recipe["policy"]["kind"] == "openvla"),
    ):
        for key, (key_name, converted) in table.items() if applies else ():
            section, _, field = key_name.partition(".")
            value = converted(_at(source, key))
            if value is not None and (section != "algorithm" or field in fields):
                used.add(key)
                _put(recipe, key_name, value)
    if not _environment(source).startswith("realworld"):  # otherwise stations are the source
        recipe.setdefault("simulation", {}).setdefault("environments", ENVS)
    _amounts(source, recipe, name, used)
    _placement(source, recipe, used)
    return recipe, [key for key in _leaves(source) if not _covered(key, used)]


def _covered(key: str, used: set[str]) -> bool:
    parts = key.split(".")
    above = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return bool(above & used) or any(
        key == other or key.startswith((other + ".", other + "_")) for other in WITHOUT_MEANING
    )


def _composed(path: Path) -> dict[str, Any]:
    """Return the YAML over those files of its ``defaults`` that are beside it."""
    document = _read(path)
    composed: dict[str, Any] = {}
    for entry in document.get("defaults") or []:
        file, _, place = str(entry).partition("@")
        file_path = path.parent / f"{file}.yaml"
        if place and file_path.is_file():
            _put(composed, place, _read(file_path))
    return _over(composed, document)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(f"{path}: expected a YAML of RLinf, got: {error}") from error
    if not isinstance(document, dict):
        raise RecipeError(f"{path}: expected a YAML of RLinf, got {type(document).__name__}")
    return document


def _over(lower: dict[str, Any], upper: Document) -> dict[str, Any]:
    both = dict(lower)
    for key, value in upper.items():
        below = both.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            both[key] = _over(below, value)
        else:
            both[key] = value
    return both


def _at(document: Document, key: str) -> Any:
    """Return the value at a dotted key; None if it is not there, or an interpolation."""
    value: Any = document
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return None if isinstance(value, str) and "${" in value else value


def _put(document: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        document = document.setdefault(part, {})
    document[last] = value


def _leaves(document: Document, above: str = "") -> Iterator[str]:
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{key}.")
        elif not (isinstance(value, str) and "${" in value):
            yield f"{above}{key}"


def _algorithm(path: Path, source: Document, used: set[str]) -> str:
    advantage, loss = (
        str(_at(source, f"algorithm.{key}") or "") for key in ("adv_type", "loss_type")
    )
    name = ALGORITHMS.get((advantage, loss)) or ALGORITHMS.get((advantage, ""))
    if name is None:
        raise RecipeError(
            f"{path}: algorithm.adv_type and loss_type: expected one of "
            f"{', '.join(sorted({first for first, _ in ALGORITHMS}))}; got '{advantage}' and "
            f"'{loss}'. docs/explain/algorithms.md has our algorithms"
        )
    used |= {"algorithm.adv_type", "algorithm.loss_type"}
    if name == "sac":
        if _at(source, "actor.model.q_head_type") == "crossq":
            used.add("actor.model.q_head_type")
            return "crossq"
        if _at(source, "algorithm.demo_buffer"):
            used.add("algorithm.demo_buffer")
            return "rlpd"
        return "sac_flow" if _model(source) == "flow_policy" else "sac"
    return name


def _environment(source: Document) -> str:
    """Return the name of their training environment: an entry of ``defaults``, or its task."""
    for entry in source.get("defaults") or []:
        if isinstance(entry, dict):  # - env/train: NAME
            names = [
                str(value)
                for key, value in entry.items()
                if "env" in str(key) and "eval" not in str(key)
            ]
        else:
            file, _, place = str(entry).partition("@")
            names = [file.rpartition("/")[2]] if place == "env.train" else []
        if names:
            return names[0]
    return str(_at(source, "env.train.init_params.id") or _at(source, "env.train.env_type") or "")


def _station(path: Path, source: Document, used: set[str]) -> dict[str, Any]:
    name = _environment(source)
    for beginning, (robot, task, file) in ENVIRONMENTS.items():
        if name.startswith(beginning):
            used |= {"env.train.env_type", "env.train.init_params.id"}
            options = {"options": {"task": task}} if task else {}
            return {"robot": robot, **options, "task": file}
    raise RecipeError(
        f"{path}: env.train: expected an environment with a counterpart: "
        f"{', '.join(ENVIRONMENTS)}; got '{name}'{nearest(name, ENVIRONMENTS)}. Name a robot and "
        "a task: --robot ROBOT --task TASK (rlinf robots, rlinf tasks)"
    )


def _model(source: Document) -> str:
    """Return the name of their policy: a key, or an entry of ``defaults``."""
    for key in ("model_type", "model_name"):
        if value := _at(source, f"actor.model.{key}"):
            return str(value)
    for entry in map(str, source.get("defaults") or []):
        file, _, place = entry.partition("@")
        if place == "actor.model":
            return file.rpartition("/")[2]
    return ""


def _policy(path: Path, source: Document, algorithm: str, used: set[str]) -> dict[str, Any]:
    name = _model(source)
    kind = MODELS.get(name)
    if kind is None:
        raise RecipeError(
            f"{path}: actor.model.model_type: expected one of {', '.join(MODELS)}; got "
            f"'{name}'{nearest(name, MODELS)}. docs/howto/vla.md has the policies"
        )
    used |= {"actor.model.model_type", "actor.model.model_name"}
    if kind in ("mlp", "cnn"):
        return {"kind": "gaussian" if algorithm in ON_POLICY else "tanh_gaussian"}
    weights = _at(source, "actor.model.model_path") or _at(source, "actor.checkpoint_load_path")
    used |= {"actor.model.model_path", "actor.checkpoint_load_path"}
    policy: dict[str, Any] = {"kind": kind}
    if kind == "openvla":
        policy["decoding"] = "parallel" if name == "openvla_oft" else "autoregressive"
    return policy | ({"checkpoint": str(weights)} if weights and kind != "flow" else {})


def _amounts(source: Document, recipe: dict[str, Any], algorithm: str, used: set[str]) -> None:
    """Convert numbers of epochs to time steps."""
    environments, steps = (
        _integer(_at(source, f"env.train.{key}"))
        for key in ("total_num_envs", "max_steps_per_rollout_epoch")
    )
    rollouts = _integer(_at(source, "algorithm.rollout_epoch")) or 1
    if not environments or not steps:
        return
    per_epoch = environments * steps * rollouts
    for key, key_name in (
        ("runner.max_epochs", "env_steps"),
        ("runner.val_check_interval", "evaluate_every"),
    ):
        if epochs := _integer(_at(source, key)):
            _put(recipe, f"simulation.{key_name}", epochs * per_epoch)
            used |= {key, "env.train.max_steps_per_rollout_epoch", "algorithm.rollout_epoch"}
    if algorithm in ("ppo", "async_ppo"):
        chunk = _integer(_at(source, "actor.model.num_action_chunks")) or 1
        _put(recipe, "algorithm.chunks", max(steps * rollouts // chunk, 1))
        if batch := _integer(_at(source, "actor.global_batch_size")):
            used.add("actor.global_batch_size")
            _put(recipe, "algorithm.minibatches", max(per_epoch // chunk // batch, 1))
    if episodes := _integer(_at(source, "env.eval.total_num_envs")):
        times = _integer(_at(source, "algorithm.eval_rollout_epoch")) or 1
        _put(recipe, "simulation.evaluate_episodes", episodes * times)
        used |= {"env.eval.total_num_envs", "algorithm.eval_rollout_epoch"}


def _placement(source: Document, recipe: dict[str, Any], used: set[str]) -> None:
    """Convert ``component_placement`` to a mode; parts on the same devices are collocated."""
    places = _at(source, "cluster.component_placement")
    if not isinstance(places, dict):
        return
    devices: dict[str, str] = {}
    for names, where in places.items():
        devices |= {name.strip(): str(where) for name in str(names).split(",")}
    used |= {"cluster.component_placement", "rollout.pipeline_stage_num"}
    if len({devices.get(name) for name in ("actor", "rollout")}) > 1:
        pipelined = (_integer(_at(source, "rollout.pipeline_stage_num")) or 1) > 1
        mode = "pipelined" if pipelined else "disaggregated"
        recipe["placement"] = {"mode": mode, "workers": 1}


def text(recipe: Document, unmapped: list[str], source: Path) -> str:
    """Return the recipe as YAML, with the keys without a counterpart as comments."""
    lines = [
        "# yaml-language-server: $schema=../docs/recipe.schema.json",
        f"# From RLinf's {source.name}, by rlinf import rlinf.",
    ]
    if unmapped:
        lines += ["# These keys of the source have no counterpart and are left out:"]
        lines += [f"#   {key}" for key in unmapped]
    return "\n".join([*lines, yaml.safe_dump(dict(recipe), sort_keys=False)])
