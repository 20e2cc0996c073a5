"""ROS 2 package of the nodes. The learning side comes along through links, so that one colcon build installs a station."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
NODES = ("environment", "policy", "operator", "interlock", "recorder", "uplink", "director", "fault_injector",
         "drill")


def shared(folder: str) -> list[tuple[str, list[str]]]:
    """(destination, files) of a linked top-level folder, with its subfolders."""
    files: dict[str, list[str]] = {}
    for path in sorted((HERE / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            relative = path.relative_to(HERE)
            files.setdefault(f"share/rlinf/{relative.parent}", []).append(str(relative))
    return list(files.items())


setup(
    name="rlinf",
    version="0.1.0",
    packages=find_packages(include=["rlinf*", "rlinf_core*", "sim_bridges*"]),
    package_data={"rlinf_core.bridge": ["*.proto"]},
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/rlinf"]),
        ("share/rlinf", ["package.xml"]),
        *shared("launch"), *shared("configs"), *shared("robots"),
    ],
    zip_safe=False,
    entry_points={"console_scripts": [f"{name} = rlinf.{name}:main" for name in NODES]
                  + ["sim_bridge = sim_bridges.ros_bridge:main"]},
)
