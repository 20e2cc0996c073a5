"""A policy file names its kind, and a kind is Python: only what recipe and installation name is
imported.
"""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from rlinf_core import policies
from rlinf_core.cli.main import main
from rlinf_core.core.errors import PolicyFileError, RecipeError, SpecError
from rlinf_core.launch.graph import station_processes
from rlinf_core.policies import (
    custom_kinds,
    make_policy,
    policy_config,
    policy_kind,
    shipped_kind,
)
from rlinf_core.policies.policy_folder import newest_policy, policy_name
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.policies.small.tanh_gaussian.policy import Actor
from rlinf_core.recipes import check_recipe, load_recipe

CUSTOM_KIND = (
    "from rlinf_core.policies.small.tanh_gaussian.policy import Policy\n"
    "from rlinf_core.policies.small.tanh_gaussian import Config\n"
)


@pytest.fixture
def actor(task):
    torch.manual_seed(0)
    return Actor(task.spec)


@pytest.fixture(autouse=True)
def nothing_requested(monkeypatch):
    monkeypatch.setattr(policies, "_requested", set())


def changed(source, target, metadata=None, **config):
    """Return a copy of a policy file with other metadata."""
    with safe_open(source, framework="np") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        texts = file.metadata()
    config = json.dumps(json.loads(texts["config"]) | config)
    save_file(weights, target, texts | {"config": config} | (metadata or {}))
    return target


@pytest.mark.parametrize(
    "kind",
    [
        "PATH.py",
        "PATH.py:Policy",
        "PATH",
        "unittest.__main__",
        "os",
        "os:system",
        "this",
        "json.tool",
        "\ud800",
        "",
        3,
        None,
        ["tanh_gaussian"],
        {"kind": "os"},
        "tanh_gaussian\x1b[31m",
        "rlinf_core.policies.small.tanh_gaussian",
        "x" * 100_000,
    ],
)
def test_a_file_cannot_choose_what_is_imported(kind, actor, tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w')")
    if isinstance(kind, str):
        kind = kind.replace("PATH", str(tmp_path / "evil"))
    path = changed(
        save_policy(actor, tmp_path / policy_name(1)), tmp_path / policy_name(2), kind=kind
    )
    with pytest.raises(PolicyFileError) as refused:
        load_policy(path)
    assert not ran.exists()
    assert str(refused.value).encode() and len(str(refused.value)) < 2000


def test_the_refusal_names_what_to_add_and_where(actor, tmp_path):
    path = changed(
        save_policy(actor, tmp_path / "a.safetensors"), tmp_path / "b.safetensors", kind="mine.py"
    )
    with pytest.raises(
        PolicyFileError, match="got 'mine.py' in a policy file.*policy.kind in the recipe.*--recipe"
    ):
        load_policy(path)


def test_nor_can_a_kind_within_another_one(task, tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w')")
    policy = make_policy(task.spec, policy_config("latent_noise")())
    path = changed(
        save_policy(policy, tmp_path / policy_name(1)),
        tmp_path / policy_name(2),
        flow={"kind": str(tmp_path / "evil.py")},
    )
    with pytest.raises(PolicyFileError):
        load_policy(path)
    assert not ran.exists()


def test_a_kind_of_the_recipe_may_stand_in_a_file_also_by_a_relative_path(
    actor, tmp_path, monkeypatch
):
    (tmp_path / "own.py").write_text(CUSTOM_KIND)
    path = changed(
        save_policy(actor, tmp_path / policy_name(1)), tmp_path / policy_name(2), kind="own.py"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyFileError):
        load_policy(path)
    with pytest.raises(PolicyFileError):
        load_policy(path)  # the refusal itself allows nothing
    load_recipe("sim_rlpd", [f"policy.kind='{tmp_path / 'own.py'}'"])
    assert load_policy(path).spec == actor.spec


NORMED_TRUNK = """
from torch import nn

from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.policies.small.tanh_gaussian.policy import Actor


class Config(tanh_gaussian.Config):
    pass


class Policy(Actor):
    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.trunk = nn.Sequential(self.trunk, nn.LayerNorm(config.hidden[-1]))
"""


def test_a_shipped_algorithm_trains_a_kind_that_extends_one_of_its_own(tmp_path):
    (tmp_path / "own.py").write_text(NORMED_TRUNK)
    sizes = [
        "simulation.env_steps=24",
        "simulation.start_steps=8",
        "simulation.evaluate_every=24",
        "simulation.evaluate_episodes=1",
        "algorithm.batch_size=4",
        "policy.hidden=[8]",
    ]
    kind, env = f"policy.kind='{tmp_path / 'own.py'}'", "env=gym:Pendulum-v1"
    steps = "env_options={max_episode_steps: 4}"
    run = tmp_path / "run"
    options = ["--no-report", "--out", str(run), "--set", kind, env, steps, *sizes]
    assert main(["train", "sim_sac", *options]) == 0
    trained = load_policy(newest_policy(run / "policies"))
    assert isinstance(trained.trunk[-1], torch.nn.LayerNorm)
    weight = trained.trunk[-1].weight
    assert not torch.equal(weight, torch.ones_like(weight)), "it was trained"
    assert main(["eval", str(run), "--episodes", "1"]) == 0


@pytest.mark.parametrize(
    "settings",
    [
        "from rlinf_core.policies.small.residual import Config",
        "from rlinf_core.policies.settings import PolicySettings as Config",
    ],
)
def test_a_kind_that_extends_no_kind_of_the_algorithm_is_refused(settings, tmp_path):
    (tmp_path / "own.py").write_text(settings)
    with pytest.raises(RecipeError, match="sac trains tanh_gaussian, got.*extends Config and"):
        check_recipe(load_recipe("sim_sac", [f"policy.kind='{tmp_path / 'own.py'}'"]))


def test_a_station_is_told_the_kinds_of_its_recipe(tmp_path):
    (tmp_path / "own.py").write_text(CUSTOM_KIND)
    recipe = load_recipe("demo", [f"policy.kind='{tmp_path / 'own.py'}'"])
    assert custom_kinds(recipe.policy) == [str(tmp_path / "own.py")]
    for loaded, kinds in ((recipe, [str(tmp_path / "own.py")]), (load_recipe("demo"), [""])):
        (node,) = [node for node in station_processes(loaded, tmp_path) if node.name == "policy"]
        assert node.parameters["custom_kinds"] == kinds


@pytest.mark.parametrize(
    "metadata",
    [
        {"config": ""},
        {"config": "[" * 100_000},
        {"config": "[]"},
        {"config": "3"},
        {"spec": "null"},
        {"spec": "["},
        {"spec": '{"robots": 3}'},
        {"info": "["},
        {"spec": '{"observation": [3]}'},
    ],
)
def test_odd_metadata_is_a_policy_file_error(metadata, actor, tmp_path):
    path = changed(
        save_policy(actor, tmp_path / "a.safetensors"), tmp_path / "b.safetensors", metadata
    )
    with pytest.raises(PolicyFileError, match=r"b\.safetensors: expected"):
        load_policy(path)


def test_whatever_numbers_a_file_holds_it_is_refused_or_read(task, actor, tmp_path):
    """The errors of every layer that is made of them, and texts without UTF-8 bytes, are errors for
    a person.
    """
    source, random = save_policy(actor, tmp_path / "a.safetensors"), np.random.default_rng(0)
    with safe_open(source, framework="np") as file:
        texts = file.metadata()
    odd = (None, 3, -1, 10**30, math.nan, "", "\ud800", "os", [], {}, True, [1] * 1000, "\0", [[]])

    def changed_somewhere(value):
        if isinstance(value, dict) and value and random.random() < 0.85:
            key = random.choice(list(value))
            return value | {key: changed_somewhere(value[key])}
        if isinstance(value, list) and value and random.random() < 0.7:
            index = int(random.integers(len(value)))
            return [*value[:index], changed_somewhere(value[index]), *value[index + 1 :]]
        return odd[int(random.integers(len(odd)))]

    for _ in range(200):
        key = str(random.choice(["config", "spec", "info"]))
        metadata = {key: json.dumps(changed_somewhere(json.loads(texts[key])))}
        path = changed(source, tmp_path / policy_name(3), metadata)
        try:
            load_policy(path, task.spec)
        except (PolicyFileError, SpecError) as error:
            assert str(error).encode()
        newest_policy(tmp_path)


@pytest.mark.parametrize(
    "code, got",
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit()", "SystemExit"),
        ("1 / 0", "ZeroDivisionError"),
        ("class Odd(BaseException): pass\nraise Odd('x')", "Odd: x"),
        ("raise ValueError('\\ud800')", r"\\ud800"),
        ("def __getattr__(name): raise SystemExit(name)", "SystemExit: Config"),
        ("Config = 3", "got 3"),
        ("", "expected a class that extends"),
    ],
)
def test_whatever_a_part_raises_while_it_is_imported_names_it(code, got, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(code)
    with pytest.raises(RecipeError, match=got) as refused:
        policy_config(str(path))
    assert "mine.py" in str(refused.value) and str(refused.value).encode()
    with pytest.raises(RecipeError, match=got):
        load_recipe("sim_rlpd", [f"policy.kind='{path}'"])


def test_a_program_is_no_part_and_ctrl_c_is_ctrl_c(tmp_path):
    with pytest.raises(
        RecipeError, match="unittest.__main__': expected an importable module, got SystemExit"
    ):
        policy_kind("unittest.__main__")
    (tmp_path / "asked.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        policy_kind(str(tmp_path / "asked.py"))


def test_rlinf_serve_serves_an_own_kind_with_its_recipe(actor, tmp_path):
    (tmp_path / "own.py").write_text(CUSTOM_KIND)
    changed(
        save_policy(actor, tmp_path / "a.safetensors"), tmp_path / policy_name(2), kind="own.py"
    )
    (tmp_path / "mine.yaml").write_text("defaults: sim_rlpd\npolicy: {kind: own.py}\n")

    def served(*recipe):
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rlinf_core.cli.main",
                "serve",
                str(tmp_path / policy_name(2)),
                "--port",
                "0",
                *recipe,
            ],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with served() as refused:
        assert "--recipe" in refused.communicate()[0] and refused.returncode
    with served("--recipe", "mine.yaml") as process:
        assert "serves version 2 (own.py)" in process.stdout.readline()
        process.terminate()


def test_settings_that_extend_those_of_a_shipped_kind_are_of_that_kind(tmp_path):
    assert shipped_kind(policy_config("pi0")()) == "pi0"
    assert shipped_kind(policy_config("latent_noise")()) == "latent_noise", "which extends flow"
    (tmp_path / "own.py").write_text(NORMED_TRUNK)
    custom = policy_config(str(tmp_path / "own.py"))
    assert shipped_kind(custom()) == "tanh_gaussian"
    assert shipped_kind(PolicySettings(kind="x")) == ""
