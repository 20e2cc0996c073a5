from types import SimpleNamespace as Space


def parse_env_cfg(task, device, num_envs):
    """Return the fields of ``FrankaCubeLiftEnvCfg`` (IK-Abs) that the adapter changes."""
    if task.startswith("Isaac-Reach-Franka"):
        return Space(num_envs=num_envs, device=device)
    assert num_envs == 1
    return Space(
        sim=Space(dt=0.01),
        decimation=2,
        episode_length_s=5.0,
        terminations=Space(time_out=object(), object_dropping=object()),
        commands=Space(object_pose=Space(resampling_time_range=(5.0, 5.0))),
        scene=Space(ee_frame=Space(target_frames=[Space(offset=Space(pos=[0.0, 0.0, 0.1034]))])),
        actions=Space(
            arm_action=Space(body_offset=Space(pos=[0.0, 0.0, 0.107])), gripper_action=object()
        ),
    )
