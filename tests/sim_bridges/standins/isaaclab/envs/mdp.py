from dataclasses import dataclass


@dataclass
class JointPositionActionCfg:
    asset_name: str
    joint_names: list
    scale: float
    use_default_offset: bool
