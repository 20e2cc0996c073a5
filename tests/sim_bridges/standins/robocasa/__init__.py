"""Stands in for RoboCasa 1.0.1: one of its tasks by name, on a table of robosuite.

What the adapter uses is as RoboCasa has it: the constructor's kitchen arguments, ``obj_body_id``,
fixtures with a ``root_body``, ``get_ep_meta``, ``_check_success``, the PandaOmron, its cameras'
names, a new model at every reset.
"""

import numpy as np
from robosuite.environments.manipulation.lift import Lift
from robosuite.models.objects import BoxObject
from robosuite.utils.mjcf_utils import new_element

YAW = 0.5  # the robot does not look along the world's x


class PickPlaceCounterToSink(Lift):
    def __init__(self, robots, layout_ids=None, style_ids=None, seed=None, **options):
        assert robots == "PandaOmron"
        self.kitchen = robots, options
        # as with load_model_on_init=False (kitchen.py@be22d65:522), before a reset
        self.sim = None
        self.robots = [None]

    def reset(self):
        if self.sim is None:
            super().__init__(robots=self.kitchen[0], **self.kitchen[1])
        return super().reset()

    def _load_model(self):
        super()._load_model()
        robot = self.robots[0].robot_model
        center = np.array([-0.56, 0.0, 0.0]) @ np.array(
            [[np.cos(YAW), np.sin(YAW), 0], [-np.sin(YAW), np.cos(YAW), 0], [0, 0, 1]]
        )
        robot.set_base_xpos(center)
        robot.set_base_ori([0, 0, YAW])
        self.sink = BoxObject("sink", size=[0.06, 0.06, 0.002], rgba=[0, 0, 1, 1], joints=None)
        body = self.sink.get_obj()
        body.set("pos", "0.05 0.2 0.802")
        self.model.worldbody.append(body)
        self.model.merge_assets(self.sink)
        for name in ("robot0_agentview_left", "robot0_agentview_center"):
            self.model.worldbody.append(
                new_element("camera", name, pos="1.0 0 1.6", xyaxes="0 1 0 -0.6 0 0.8")
            )

    def _setup_references(self):
        super()._setup_references()
        self.obj_body_id = {"obj": self.cube_body_id}

    def _setup_observables(self):
        return {}

    def get_ep_meta(self):
        return {"lang": "Pick the cube from the counter and place it in the sink."}

    def _check_success(self):
        data = self.sim.data
        obj = data.body_xpos[self.cube_body_id]
        sink = data.body_xpos[self.sim.model.body_name2id(self.sink.root_body)]
        hand = data.site_xpos[self.robots[0].eef_site_id["right"]]
        return bool(
            np.all(np.abs(obj - sink)[:2] < 0.05)
            and obj[2] < 0.84
            and np.linalg.norm(hand - obj) > 0.07
        )
