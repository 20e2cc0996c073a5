"""Builds rlinf_description for colcon and bloom: data files only."""

from setuptools import setup

NAME = "rlinf_description"
setup(
    name=NAME,
    version="0.1.0",
    description="Layouts of RViz and Foxglove for a station.",
    maintainer="rlinf engineers",
    maintainer_email="rlinf@users.noreply.github.com",
    license="Apache-2.0",
    packages=[],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        *[
            (
                f"share/{NAME}/layouts",
                [f"layouts/{name}" for name in ("station.rviz", "foxglove.json")],
            )
        ],
    ],
    install_requires=["setuptools"],
    extras_require={"test": ["pytest"]},
)
