"""Run Isaac Lab 3.0 without Isaac Sim, in its own Python: a box is pushed to a goal on Newton.

Prints one JSON object: the box's rotation as the adapter's release reads it, before and after it
was turned; environment steps a second; success of the task before and after an algorithm learned it
in our batched path.
"""

import json
import sys
import time

import gymnasium
import torch
from isaaclab.assets import RigidObjectCfg
from isaaclab.envs import DirectRLEnv, DirectRLEnvCfg
from isaaclab.scene import InteractiveSceneCfg
from isaaclab.sim import (
    CollisionPropertiesCfg,
    CuboidCfg,
    MassPropertiesCfg,
    RigidBodyPropertiesCfg,
    SimulationCfg,
)
from isaaclab.utils import configclass
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg

from sim_bridges.simulators.isaaclab.package import installed_release

SPEED, NEAR_M, RANGE_M = 1.0, 0.1, 0.5
TASK = "Isaac-Push-Box"


@configclass
class Scene(InteractiveSceneCfg):
    box: RigidObjectCfg = RigidObjectCfg(
        prim_path="{ENV_REGEX_NS}/Box",
        spawn=CuboidCfg(
            size=(0.1, 0.1, 0.1),
            rigid_props=RigidBodyPropertiesCfg(),
            mass_props=MassPropertiesCfg(mass=1.0),
            collision_props=CollisionPropertiesCfg(),
        ),
        init_state=RigidObjectCfg.InitialStateCfg(pos=(0.0, 0.0, 0.5)),
    )


@configclass
class Config(DirectRLEnvCfg):
    decimation = 2
    episode_length_s = 2.0
    action_space = 2
    observation_space = 2
    state_space = 0
    sim: SimulationCfg = SimulationCfg(
        dt=0.02,
        render_interval=2,
        device="cpu",
        gravity=(0.0, 0.0, 0.0),
        physics=NewtonCfg(solver_cfg=MJWarpSolverCfg(), num_substeps=1, use_cuda_graph=False),
    )
    scene: Scene = Scene(num_envs=4, env_spacing=3.0, replicate_physics=True)


class PushBox(DirectRLEnv):
    """A task with velocity commands; the reward is the approach to the middle, and 1 there."""

    def __init__(self, cfg, render_mode=None, **more):
        super().__init__(cfg, render_mode, **more)
        self.box = self.scene["box"]
        self.before = self._away().norm(dim=1)

    def _pre_physics_step(self, actions):
        self.actions = actions

    def _apply_action(self):
        velocity = torch.zeros(self.num_envs, 6)
        velocity[:, :2] = SPEED * self.actions
        self.box.write_root_velocity_to_sim_index(root_velocity=velocity)

    def _away(self):
        return (self.box.data.root_pos_w.torch - self.scene.env_origins)[:, :2]

    def _get_observations(self):
        return {"policy": self._away().clone()}

    def _get_rewards(self):
        now = self._away().norm(dim=1)
        reward = self.before - now + (now < NEAR_M)
        self.before = now
        return reward

    def _get_dones(self):
        return self._away().norm(dim=1) < NEAR_M, self.episode_length_buf >= self.max_episode_length

    def _reset_idx(self, env_ids):
        super()._reset_idx(env_ids)
        env_ids = torch.as_tensor(env_ids)
        pose = self.box.data.default_root_pose.torch[env_ids].clone()
        pose[:, :3] += self.scene.env_origins[env_ids]
        pose[:, :2] += RANGE_M * (2 * torch.rand(len(pose), 2) - 1)
        self.box.write_root_pose_to_sim_index(root_pose=pose, env_ids=env_ids)
        self.before[env_ids] = (pose[:, :3] - self.scene.env_origins[env_ids])[:, :2].norm(dim=1)


gymnasium.register(TASK, PushBox, disable_env_checker=True, kwargs={"env_cfg_entry_point": Config})


def main(size: int) -> dict:
    from sim_bridges.simulators.isaaclab.batched import Batched

    torch.set_num_threads(1)
    started = time.time()
    env, release = Batched(TASK, size, torch.device("cpu")), installed_release()
    env.reset([0])
    figures = {"first_reset_s": time.time() - started}

    def rotation():
        pose = torch.cat(
            [env.env.box.data.root_pos_w.torch[0], env.env.box.data.root_quat_w.torch[0]]
        )
        return release.to_xyzw(pose.numpy())[3:].tolist()

    figures["unturned"] = rotation()
    turned = torch.tensor([0.1, 0.2, 0.3, (1 - 0.14) ** 0.5])
    pose = env.env.box.data.default_root_pose.torch.clone()
    pose[:, 3:] = torch.from_numpy(release.from_xyzw(turned.numpy()))
    env.env.box.write_root_pose_to_sim_index(root_pose=pose)
    figures["turned"] = rotation()
    env.reset([0])
    for _ in range(20):
        env.step(torch.zeros(size, 2))
    started = time.time()
    for _ in range(100):
        env.step(torch.zeros(size, 2))
    figures["steps_per_s"] = 100 * size / (time.time() - started)
    figures |= learn(env, size)
    env.close()
    return figures


def learn(env, size: int) -> dict:
    """Train REINFORCE with a linear policy; return the success of the first and the last rounds."""
    torch.manual_seed(0)
    weights = torch.zeros(2, 2, requires_grad=True)
    optimiser, arrived = torch.optim.Adam([weights], 0.3), []
    observation = env.reset([1])["vectors"]
    for _ in range(30):
        logs, rewards, ends, goals = [], [], 0, 0
        for _ in range(50):
            mean = observation @ weights
            action = (mean + 0.3 * torch.randn_like(mean)).detach()
            logs.append(-((action - mean) ** 2).sum(1) / (2 * 0.3**2))
            steps = env.step(action)
            rewards.append(steps.reward)
            ends += float(torch.maximum(steps.terminated, steps.truncated).sum())
            goals += float(steps.terminated.sum())
            observation = steps.observation["vectors"]
        reward = torch.stack(rewards)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        optimiser.zero_grad()
        (-(torch.stack(logs) * advantage).mean()).backward()
        optimiser.step()
        arrived.append(goals / max(ends, 1.0))
    return {
        "success_before": sum(arrived[:3]) / 3,
        "success_after": sum(arrived[-3:]) / 3,
        "environments": size,
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)))
