"""Builds rlinf_bringup for colcon and bloom: data files only."""

import os

from setuptools import setup

NAME = "rlinf_bringup"


def tree(top: str) -> list[tuple[str, list[str]]]:
    """Return the files below a folder, as data_files; follow links."""
    return [
        (
            f"share/{NAME}/{folder}",
            [f"{folder}/{file}" for file in files if not file.endswith(".pyc")],
        )
        for folder, _, files in os.walk(top, followlinks=True)
        if files and "__pycache__" not in folder
    ]


setup(
    name=NAME,
    version="0.1.0",
    description="Launch files of a station, its robots and recipes, udev rules and a systemd unit.",
    maintainer="rlinf engineers",
    maintainer_email="rlinf@users.noreply.github.com",
    license="Apache-2.0",
    packages=[],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        *tree("launch"),
        *tree("robots"),
        *tree("udev"),
        *tree("systemd"),
    ],
    install_requires=["setuptools"],
    extras_require={"test": ["pytest"]},
)
