"""Builds rlinf_interlock for colcon and bloom."""

from setuptools import setup

NAME = "rlinf_interlock"
setup(
    name=NAME,
    version="0.1.0",
    description="The interlock node: the only publisher of set-points. It enforces the limits of "
    "one arm.",
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
            "interlock = rlinf_interlock.interlock:main",
        ]
    },
)
