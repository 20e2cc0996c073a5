from dataclasses import dataclass


@dataclass
class CameraCfg:
    prim_path: str
    height: int
    width: int
    data_types: list
    update_period: float
    spawn: object
    offset: object

    @dataclass
    class OffsetCfg:
        pos: tuple
        rot: tuple
        convention: str
