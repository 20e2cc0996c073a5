"""Builds rlinf_tools for colcon and bloom."""

from setuptools import setup

NAME = "rlinf_tools"
setup(
    name=NAME,
    version="0.1.0",
    description="Clients of a running station: doctor, calibration, first motion, arming, the "
    "safety drill.",
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
            "drill = rlinf_tools.drill:main",
            "fault_injector = rlinf_tools.fault_injector:main",
        ]
    },
)
