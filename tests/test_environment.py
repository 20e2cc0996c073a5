from pathlib import Path

import numpy as np
import pytest
import yaml

from rlinf_core.environment import judge, load_task, observe
from rlinf_core.errors import RecipeError, SpecError

GOOD = yaml.safe_load(Path("configs/tasks/peg_insertion.yaml").read_text())


def channels(depth=0.0, aside=0.0):
    pose = np.array([0.5 + aside, 0.0, 0.05 - depth, 0, 1, 0, 0])
    return {"current_pose": pose, "current_twist": np.arange(6.0), "wrench": np.arange(6.0) + 10,
            "object_pose": np.array([0.5, 0.0, 0.05, 0, 0, 0, 1])}


def test_observations_are_taken_from_the_channels_that_the_task_names(task):
    seen = observe(task.spec, channels(depth=0.01, aside=0.02))
    assert seen["tcp_velocity"].tolist() == [0, 1, 2] and seen["force"].tolist() == [10, 11, 12]
    assert seen["socket_offset"] == pytest.approx([-0.02, 0, 0.01])


def test_a_missing_channel_is_named_with_what_to_do(task):
    silent = channels()
    del silent["wrench"]
    with pytest.raises(SpecError, match="'force': nothing has come on 'wrench'. Is its publisher running"):
        observe(task.spec, silent)


def test_success_ends_with_discount_0_and_a_time_limit_with_1(task):
    assert judge(task, channels(depth=0.03), 5) == judge(task, channels(depth=0.03), 50)
    assert (judge(task, channels(0.03), 5).reward, judge(task, channels(0.03), 5).discount) == (1.0, 0.0)
    late = judge(task, channels(), task.max_steps)
    assert (late.reward, late.discount, late.last) == (0.0, 1.0, True)
    assert not judge(task, channels(depth=0.03, aside=0.02), 5).last, "beside the socket is not inside"


@pytest.mark.parametrize("change, said", [
    ({"max_step": 3}, "unknown key 'max_step' (did you mean 'max_steps'?)"),
    ({"observation": {"x": {"source": "wrench", "take": "forces", "shape": [3]}}}, "did you mean 'force'"),
    ({"observation": {"x": {"source": "wrench", "shape": [3]}}}, "'observation.x.take' is missing: which part"),
    ({"reward": {"kind": "insertio"}}, "did you mean 'insertion'"),
    ({"reward": {"kind": "insertion", "dept": 1}}, "dept"),
])
def test_mistakes_in_a_task_name_the_key_and_the_nearest_one(tmp_path, change, said):
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(GOOD | change))
    with pytest.raises(RecipeError) as error:
        load_task(path)
    assert said in str(error.value)


def test_cameras_become_image_observations_resized_to_the_declared_size(task):
    seeing = task.with_images({"front": (32, 48)})
    frame = np.full((64, 96, 3), 9, np.uint8)
    seen = observe(seeing.spec, channels() | {"camera/front/image": frame})
    assert seen["front"].shape == (32, 48, 3) and seen["front"].dtype == np.uint8 and (seen["front"] == 9).all()
