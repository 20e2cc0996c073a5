"""Images that a policy does not look at are recorded, and neither kept by its learner nor drawn,
moved and copied.
"""

import numpy as np
import pytest

from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies import kinds, policy_kind
from rlinf_core.specs.arrays import StationSpec
from tests.messages import record
from tests.trainer.test_run import RLPD, run_of


def run_with_features(task, folder, features):
    run = run_of(
        task.with_images({"front": (8, 8)}),
        folder / str(features),
        "algorithm.batch_size=4",
        f"policy={{kind: tanh_gaussian, hidden: [8], channels: [4], image_features: {features}}}",
        algorithm=RLPD,
    )
    spool = Spool(folder / f"spool{features}")
    for name, mode in (("d", "demonstration"), ("o", "train")):
        run.intake.take(
            record(spool, run.policy.spec, name, mode=mode, steps=6, start=1000.0).close(),
            run.insert,
        )
    return run


def test_a_learner_is_given_no_image_that_its_policy_does_not_look_at(task, tmp_path):
    batches = {}
    for features in (0, 4):
        run = run_with_features(task, tmp_path, features)
        assert run.policy.spec.images, "the station's specs stay as they are"
        batches[features] = run.data.batch()
        assert all(np.isfinite(value) for value in run.learner.update(batches[features]).values())
    assert set(batches[4]) - set(batches[0]) == {"front", "next/front"}
    assert len(batches[0]["vectors"]) == len(batches[4]["vectors"])


def test_a_replay_of_when_they_were_kept_goes_on_without_them(task):
    spec: StationSpec = task.with_images({"front": (8, 8)}).spec
    imaged, plain = ReplayBuffer(spec, 50), ReplayBuffer(task.spec, 50)
    vectors = np.random.default_rng(0).normal(size=(5, spec.vector_size))
    actions = np.zeros((4, spec.action.dim))
    imaged.insert_episode(
        {"vectors": vectors, "front": np.ones((5, 8, 8, 3), np.uint8)},
        actions,
        np.ones(4),
        np.ones(4),
    )
    plain.load_state_dict(imaged.state_dict())
    assert np.array_equal(plain.vectors(), imaged.vectors()) and len(plain) == 4


@pytest.mark.parametrize("kind", kinds())
def test_what_has_eyes_of_its_own_looks_whatever_an_encoders_settings_say(kind):
    pytest.importorskip(
        "transformers", reason="the extra vla: transformers has none for Python 3.10"
    )
    encoders = ("tanh_gaussian", "conditioned", "residual", "gaussian", "flow", "language")
    assert policy_kind(kind).Policy.uses_images is (kind not in encoders)
