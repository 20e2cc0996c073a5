"""Builds rlinf_drivers for colcon and bloom."""

from setuptools import setup

NAME = "rlinf_drivers"
setup(
    name=NAME,
    version="0.1.0",
    description="The robot side of a station: drivers, controllers, grippers, cameras, the bridge "
    "to simulators.",
    maintainer="rlinf engineers",
    maintainer_email="rlinf@users.noreply.github.com",
    license="Apache-2.0",
    packages=[NAME],
    package_data={NAME: ["py.typed"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
    ],
    install_requires=["setuptools"],
    extras_require={"test": ["pytest"]},
    entry_points={
        "console_scripts": [
            "camera = rlinf_drivers.camera:main",
            "controller = rlinf_drivers.controller:main",
            "driver = rlinf_drivers.driver:main",
            "gripper = rlinf_drivers.driver:main",
            "gripper_twin = rlinf_drivers.driver:main",
            "sim_bridge = sim_bridges.core.ros_bridge:main",
            "twin = rlinf_drivers.driver:main",
        ]
    },
)
