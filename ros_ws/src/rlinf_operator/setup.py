"""Builds rlinf_operator for colcon and bloom."""

from setuptools import setup

NAME = "rlinf_operator"
setup(
    name=NAME,
    version="0.1.0",
    description="The operator of a station: devices, the scripted operator of a simulation, the "
    "operator's page.",
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
            "operator = rlinf_operator.operator:main",
            "page = rlinf_operator.page:main",
        ]
    },
)
