"""Checks of every package in the workspace, for ``colcon test``."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

RELEASE = re.compile(r"^(\d+\.\d+\.\d+) \(\d{4}-\d{2}-\d{2}\)$", re.M)  # REP 132
FIELDS = ("description", "maintainer", "license", "test_depend")


class PackageChecks:
    """Base of the checks in ``test/test_package.py`` of a package.

    Attributes:
        folder: the folder of the package's sources.
    """

    folder: Path

    @property
    def name(self) -> str:
        """Name of the package."""
        return self.folder.name

    def test_the_manifest_is_complete_and_of_the_same_version_as_the_changelog(self) -> None:
        manifest = ElementTree.parse(self.folder / "package.xml").getroot()
        assert manifest.findtext("name") == self.name
        assert not [field for field in FIELDS if not (manifest.findtext(field) or "").strip()]
        assert RELEASE.findall((self.folder / "CHANGELOG.rst").read_text())[0] == manifest.findtext(
            "version"
        )
        assert f'version="{manifest.findtext("version")}"' in (self.folder / "setup.py").read_text()
        assert (self.folder / "README.md").read_text().startswith(f"# {self.name}\n")

    def test_the_linters_have_nothing_to_say(self) -> None:
        linter = "ament_flake8" if find_spec("ament_flake8") else "ruff"
        if linter == "ruff" and not find_spec("ruff"):
            importlib.import_module("pytest").skip("neither ament_flake8 nor ruff is installed")
        command = (
            [linter, "--linelength", "124"]
            if linter == "ament_flake8"
            else [
                linter,
                "check",
                "--no-cache",
                "--isolated",
                "--select",
                "E,F,W",
                "--line-length",
                "124",
            ]
        )
        checked = subprocess.run(
            [sys.executable, "-m", *command, str(self.folder)], text=True, capture_output=True
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr

    def test_every_import_is_of_a_package_that_the_manifest_names(self) -> None:
        """Check imports; those of the distribution ``rlinf`` and of Python need no entry."""
        manifest = ElementTree.parse(self.folder / "package.xml").getroot()
        declared = {element.text for element in manifest if element.tag.endswith("depend")}
        modules = {
            name.split(".")[0]
            for path in (self.folder / self.name).glob("*.py")
            for name in _imports(path)
            if name.startswith("rlinf_") or name.split(".")[0].endswith("_msgs")
        }
        assert modules - {self.name, "rlinf_core"} <= declared

    def test_every_executable_has_an_entry_point(self) -> None:
        for module in re.findall(r'"\w+ = ([\w.]+):main"', (self.folder / "setup.py").read_text()):
            if not find_spec("rclpy"):
                importlib.import_module("pytest").skip("rclpy is not installed")
            assert callable(importlib.import_module(module).main)


def _imports(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    return {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    } | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
