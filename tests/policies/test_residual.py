"""A correction of a base policy that stays as it is, in one file or over openpi's protocol."""

import copy
import hashlib
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from websockets.sync.server import serve

from rlinf_core.algorithms import residual, sft
from rlinf_core.core.errors import PolicyFileError, RecipeError, ServingError, SpecError
from rlinf_core.deploy.serving import served_base
from rlinf_core.deploy.serving.protocol import pack, read_request, unpack
from rlinf_core.policies import make_policy
from rlinf_core.policies.base import Observation
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.policies.small.residual import Config
from rlinf_core.policies.small.residual.policy import ResidualActor
from rlinf_core.recipes import load_recipe
from rlinf_core.reports.curves import read_evaluations
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.train import train
from tests.algorithms.point import SPEC, points

pytestmark = pytest.mark.timed

SMALL = {"hidden": (16,), "residual_bound": 0.5}
OBSERVATION = Observation(
    torch.tensor([[0.5, -0.3], [-0.8, 0.1], [0.0, 0.9]]), instruction=("",) * 3
)


def base_policy(seed=0, horizon=1):
    torch.manual_seed(seed)
    base = make_policy(SPEC, tanh_gaussian.Config(hidden=(16,), horizon=horizon)).eval()
    base.encoder.set_statistics(np.array([0.1, 0.2]), np.array([0.5, 0.6]))
    return base


def corrected(base, share=1.0, **config):
    torch.manual_seed(1)
    actor = ResidualActor(SPEC, Config(**SMALL | config), base)
    actor.share.fill_(share)
    return actor


@contextmanager
def served(policy, answers=None):
    """Provide a server of another maker: it speaks openpi's protocol and nothing of ours."""
    requests = []

    def answer(socket):
        socket.send(pack({"server": "another"}))
        for message in socket:
            request = read_request(SPEC, unpack(message), False)
            requests.append(request)
            observation = Observation(
                torch.from_numpy(request.vectors.copy())[None], instruction=("",)
            )
            actions = SPEC.action.to_si(policy.act(observation, False).actions[0].numpy())
            socket.send(pack(answers or {"actions": actions}))

    with serve(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}", requests
        finally:
            server.shutdown()
            thread.join()


def test_without_a_share_it_acts_as_its_base_and_with_one_within_its_bound():
    base = base_policy()
    actions = base.act(OBSERVATION, False).actions
    assert torch.equal(corrected(base, 0.0).act(OBSERVATION, False).actions, actions)
    assert torch.equal(
        corrected(base, 0.0).act(OBSERVATION, True, torch.Generator().manual_seed(0)).actions,
        actions,
    )
    for share in (0.3, 1.0):
        drawn = torch.cat(
            [
                corrected(base, share)
                .act(OBSERVATION, True, torch.Generator().manual_seed(seed))
                .actions
                for seed in range(50)
            ]
        ) - actions.repeat(50, 1, 1)
        assert 0.3 * share * 0.5 < drawn.abs().max() <= share * 0.5 + 1e-6


def test_a_demonstrated_action_is_cloned_as_the_correction_that_leads_there():
    actor = corrected(base_policy())
    batch = actor.to_batch(OBSERVATION)
    base = actor.recorded_base_actions(batch)
    target = (base + torch.tensor([0.2, -0.1])).clamp(-1, 1)
    assert torch.allclose(
        actor.apply_correction(batch, actor.correction_to(batch, target)), target, atol=1e-6
    )
    cloner = sft.Learner(actor, sft.Config(min_std=0.0, learning_rate=1e-2), 0)
    data = {"vectors": batch["vectors"].numpy(), "action": target.numpy()}
    for _ in range(200):
        cloner.update(data)
    assert torch.allclose(actor.act(OBSERVATION, False).actions.flatten(1), target, atol=0.02)


def test_a_policy_file_holds_the_base_once_and_as_it_was(tmp_path):
    path = save_policy(base_policy(), tmp_path / "base" / policy_name(3))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    actor = ResidualActor(SPEC, Config(**SMALL, base=str(tmp_path / "base")))
    actor.share.fill_(0.7)
    before = {name: tensor.clone() for name, tensor in actor.base.state_dict().items()}
    learner = residual.Learner(
        actor, residual.Config(critics=2, critic_hidden=(16,), ema_rate=0.5), 0
    )
    learner.fit_normalisation(np.random.default_rng(0).normal(size=(50, 4)))
    assert all(
        torch.equal(before[name], tensor) for name, tensor in actor.base.state_dict().items()
    )
    assert not torch.equal(actor.encoder.mean, torch.zeros(4))
    one, two = (save_policy(actor, tmp_path / "run" / policy_name(version)) for version in (1, 2))
    assert len([*(tmp_path / "run").glob("base-*.safetensors")]) == 1
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    path.unlink()
    loaded = load_policy(two, SPEC)
    assert torch.equal(
        loaded.act(OBSERVATION, False).actions, actor.act(OBSERVATION, False).actions
    )
    assert loaded.share == 0.7 and one.stat().st_size < 40_000


def test_a_served_base_answers_as_the_file_and_each_observation_once():
    base = base_policy(horizon=4)
    with served(base) as (address, requests):
        actor = ResidualActor(SPEC, Config(**SMALL, base=address, horizon=2))
        assert torch.allclose(
            actor.act(OBSERVATION, False).actions,
            base.act(OBSERVATION, False).actions[:, :2],
            atol=1e-6,
        )
        annotate = actor.annotate({"vectors": OBSERVATION.vectors.numpy()})
        assert annotate["vectors"].shape == (3, 6) and len(requests) == 3
        assert (
            copy.deepcopy(actor).act(OBSERVATION, False).actions.shape == (3, 2, 2)
            and len(requests) == 6
        )


def test_a_served_base_that_goes_away_or_answers_nonsense_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr(served_base, "RETRY_S", 0.01)
    base = base_policy()
    with served(base) as (address, _):
        actor = ResidualActor(SPEC, Config(**SMALL, base=address, base_timeout_s=1.0))
        actor.act(OBSERVATION, False)
    other = Observation(OBSERVATION.vectors + 0.01, instruction=("",) * 3)
    with pytest.raises(ServingError, match="policy server ws://127"):
        actor.act(other, False)
    with (
        served(base, {"actions": np.full((1, 2), 9.0)}) as (address, _),
        pytest.raises(ServingError, match="other units"),
    ):
        ResidualActor(SPEC, Config(**SMALL, base=address)).act(OBSERVATION, False)
    with (
        served(base) as (address, _),
        pytest.raises(SpecError, match="policy.horizon: expected at most the base's 1"),
    ):
        ResidualActor(SPEC, Config(**SMALL, base=address, horizon=2)).act(OBSERVATION, False)


def test_the_servers_key_goes_only_to_the_address_that_this_machine_names(tmp_path, monkeypatch):
    (tmp_path / "key").write_text("k" * 32)
    (tmp_path / "key").chmod(0o600)
    keys = []
    monkeypatch.setattr(
        served_base,
        "PolicyClient",
        lambda address, timeout_s, key: keys.append((address, key)) or None,
    )
    monkeypatch.setenv("RLINF_BASE_API_KEY_FILE", str(tmp_path / "key"))
    base = served_base.ServedBase(SPEC, "ws://elsewhere:1", 1.0, {})
    base._connected()
    monkeypatch.setenv("RLINF_BASE_ADDRESS", "ws://ours:2")
    base._connected()
    assert keys == [("ws://elsewhere:1", ""), ("ws://ours:2", "k" * 32)]


def test_no_base_and_a_missing_one_are_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"policy.base: expected a policy file"):
        make_policy(SPEC, Config(**SMALL))
    with pytest.raises(PolicyFileError, match="no such file or folder"):
        make_policy(SPEC, Config(**SMALL, base=str(tmp_path / "none")))


def test_the_share_grows_while_episodes_succeed_as_the_bases_and_is_halved_where_they_do_not():
    share = residual.Config(base_episodes=10, growth=0.25, window=4).share
    for success in [True] * 6 + [False] * 4:
        share.record_outcome(success)
        assert share.value == 0.0
    assert share.base_success == 0.6
    for expected, success in zip(
        (0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.75), (1, 1, 0, 1, 0, 0, 1), strict=True
    ):
        share.record_outcome(bool(success))  # the window of four then holds 1 0 1 0, and 0 1 0 0
        if share.value != expected:
            break
    other = residual.Config(base_episodes=10, growth=0.25, window=4).share
    other.load_state_dict(share.state_dict())
    assert other.state_dict() == share.state_dict()
    for _ in range(20):
        share.record_outcome(False)
    assert share.value < 0.3


def test_a_run_corrects_a_base_goes_on_and_stations_get_the_share(tmp_path):
    save_policy(base_policy(), tmp_path / "base" / policy_name(0))
    more = [
        f"policy.base={tmp_path / 'base'}",
        "policy.hidden=[16]",
        "algorithm.critic_hidden=[16]",
        "sft.steps=5",
        "algorithm.base_episodes=2",
        "algorithm.growth=0.5",
        "algorithm.keep_above=0.0",
        "collect.episodes=2",
        "simulation.evaluate_every=50",
        "simulation.evaluate_episodes=4",
        "algorithm.batch_size=16",
    ]
    for steps in (75, 125):
        train(
            load_recipe("sim_residual", [*more, f"simulation.env_steps={steps}"]),
            tmp_path / "run",
            points,
        )
    entries = read_evaluations(tmp_path / "run")
    assert [entry["env_steps"] for entry in entries] == [0, 50, 75, 100, 125]
    policy = load_policy(max((tmp_path / "run" / "policies").glob("policy-*")), SPEC)
    state = checkpoint.load_newest(tmp_path / "run" / "checkpoints")
    assert policy.share > 0.5 and state["data"]["share"]["episodes"] >= 125 // 25


def test_the_share_by_hand():
    share = residual.Config(base_episodes=2, growth=0.3, window=4, keep_above=1.0).share
    assert (share.value, share.episodes, share.base_success) == (0.0, 0, 0.0)
    share.record_outcome(True)
    assert (share.value, share.episodes, share.base_success) == (0.0, 1, 1.0)
    share.record_outcome(False)
    assert (share.value, share.base_successes, share.base_success) == (0.0, 1, 0.5)
    assert [*share.recent] == []
    for success, value, recent in (
        (True, 0.3, [True]),
        (False, 0.6, [True, False]),  # exactly as good as the base
        (False, 0.3, []),  # one of three
        (False, 0.6, [False]),  # too few to tell
        (False, 0.3, []),
        (True, 0.6, [True]),
        (True, 0.9, [True] * 2),
        (True, 1.0, [True] * 3),
        (True, 1.0, [True] * 4),
        (False, 1.0, [True] * 3 + [False]),
    ):
        share.record_outcome(success)
        assert share.value == pytest.approx(value) and [*share.recent] == recent
    assert share.base_success == 0.5 and share.episodes == 12
    assert share.state_dict() == {
        "value": 1.0,
        "episodes": 12,
        "base_successes": 1,
        "recent": [[True, True, True, False]],
    }
    other = residual.Config(base_episodes=2, window=4).share
    other.record_outcome(False)
    other.load_state_dict(share.state_dict())
    assert other.state_dict() == share.state_dict() and other.recent.maxlen == 4
