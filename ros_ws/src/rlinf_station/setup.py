"""Builds rlinf_station for colcon and bloom."""

from setuptools import setup

NAME = "rlinf_station"
setup(
    name=NAME,
    version="0.1.0",
    description="The nodes that play and record episodes: environment, policy, recorder, uplink, "
    "director, manager.",
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
            "director = rlinf_station.director:main",
            "environment = rlinf_station.environment:main",
            "lifecycle_manager = rlinf_station.lifecycle_manager:main",
            "policy = rlinf_station.policy:main",
            "recorder = rlinf_station.recorder:main",
            "station = rlinf_station.station_process:main",
            "uplink = rlinf_station.uplink:main",
        ]
    },
)
