"""Builds rlinf_ros for colcon and bloom."""

from setuptools import setup

NAME = "rlinf_ros"
setup(
    name=NAME,
    version="0.1.0",
    description="The shared part of every node: quality of service, spinning, parameters, "
    "conversions.",
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
)
