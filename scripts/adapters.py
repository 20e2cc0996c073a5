"""Check simulators that cannot run here: resolve what each adapter uses in the package's source.

    python scripts/adapters.py  # every manifest; packages of PyPI are downloaded
    python scripts/adapters.py isaaclab --root isaaclab==3.0.0=FOLDER
    python scripts/adapters.py behavior --root StanfordVL/BEHAVIOR-1K=CLONE

A manifest is sim_bridges/simulators/NAME/manifest.yaml: sources, the lines of their files that the
adapter relies on, and the names of ours that each accounts for. Prints a line for each; exit code 1
where a line is not in its file, or where the adapter uses a name that its manifest does not account
for.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
SIMULATORS = ROOT / "sim_bridges/simulators"
CACHE = ROOT / ".venvs/sources"


def manifests() -> dict[str, list[dict]]:
    """Return the sources of each adapter that has a manifest."""
    return {
        path.parent.name: yaml.safe_load(path.read_text())
        for path in sorted(SIMULATORS.glob("*/manifest.yaml"))
    }


def names_used(adapter: str) -> set[str]:
    """Return an adapter's attributes and keyword arguments that come from another package.

    Names of the adapter itself, of Python and of NumPy are left out.
    """
    used: set[str] = set()
    defined: set[str] = set()
    for path in sorted((SIMULATORS / adapter).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
                defined.update(
                    argument.arg for argument in getattr(getattr(node, "args", None), "args", [])
                )
            elif isinstance(node, ast.Attribute):
                if isinstance(node.value, ast.Name) and node.value.id in (
                    "self",
                    "np",
                    "Path",
                    "os",
                    "sys",
                    "contextlib",
                    "cv2",
                    "importlib",
                    "torch",
                    "metadata",
                ):
                    defined.add(node.attr)
                else:
                    used.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                defined.add(node.target.id)
            elif isinstance(node, ast.Call):
                used.update(keyword.arg for keyword in node.keywords if keyword.arg)
    return {name for name in used - defined if not hasattr("", name) and name not in PYTHON}


# attributes of NumPy, torch, dicts, paths, Gymnasium, pictures, MuJoCo models and our scenes
PYTHON = {
    "castshadow",
    "fovy",
    "xyaxes",
    "opt",
    "timestep",
    "qposadr",
    "fromkeys",
    "is_dir",
    "strict",
    "remove",
    "cameras",
    "pose",
    "solve",
    "to_world",
    "tool_pose",
    "tool_twist",
    "as_tensor",
    "float32",
    "frozen",
    "default_rng",
    "manual_seed",
    "setdefault",
    "tensor",
    "zeros",
    "__name__",
    "make",
    "unwrapped",
    "front",
    "sum",
    "copy",
    "astype",
    "numpy",
    "cpu",
    "float",
    "max",
    "min",
    "any",
    "p",
    "q",
    "inv",
    "ndim",
    "clamp",
    "double",
    "get",
    "is_file",
    "read_text",
    "resolve",
    "exists",
    "append",
    "items",
    "torch",
    "shape",
    "interpolation",
    "dtype",
    "insert",
    "cwd",
    "update",
    "keys",
    "tolist",
    "version",
    "metadata",
    "initial_qpos",
    "close",
    "callback",
    "push",
    "uniform",
    "enter_context",
    "path",
    "registry",
    "Path",
    "PackageNotFoundError",
    "parent",
    "set_default",
    "norm",
    "size",
    "origin",
    "environ",
    "name",
}


def fetched(source: str) -> Path | None:
    """Return the folder of an unpacked package of PyPI, named as NAME==VERSION.

    It is None for a repository, which is not fetched.
    """
    if "==" not in source:
        return None
    folder = CACHE / source
    if not folder.is_dir():
        wheels = CACHE / "wheels" / source
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--ignore-requires-python",
            "-d",
            str(wheels),
            source,
        ]
        if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode:
            return None
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(
                    folder, [name for name in archive.namelist() if name.endswith((".py", ".toml"))]
                )
    return folder


def resolve(source: dict, root: Path | None) -> list[tuple[str, str, str]]:
    """Return (file, line that the adapter relies on, its place in the file).

    The place is empty if the line is missing, and '?' without the source.
    """
    rows = []
    for place, lines in source["uses"].items():
        path = root / place.partition("@")[0] if root else None
        text = path.read_text() if path and path.is_file() else ""
        for line in lines:
            at = text.find(line)
            rows.append(
                (
                    place,
                    line,
                    "?"
                    if root is None
                    else f"line {text.count(chr(10), 0, at) + 1}"
                    if at >= 0
                    else "",
                )
            )
    return rows


def main() -> int:
    """Print every manifest with the resolved lines; return 1 if a line is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("adapters", nargs="*", help="default: all that have a manifest")
    parser.add_argument(
        "--root",
        nargs="*",
        default=[],
        metavar="SOURCE=FOLDER",
        help="folder of an existing source",
    )
    arguments = parser.parse_args()
    roots = {
        name: Path(folder) for name, _, folder in (item.rpartition("=") for item in arguments.root)
    }
    missing = 0
    for adapter, sources in manifests().items():
        if arguments.adapters and adapter not in arguments.adapters:
            continue
        text = "\n".join(
            line for source in sources for lines in source["uses"].values() for line in lines
        )
        unaccounted = sorted(name for name in names_used(adapter) if name not in text)
        missing += len(unaccounted)
        print(
            f"{adapter}: {len(names_used(adapter))} names used"
            + (f", not in the manifest: {', '.join(unaccounted)}" if unaccounted else "")
        )
        for source in sources:
            rows = resolve(source, roots.get(source["source"]) or fetched(source["source"]))
            missing += sum(not where for _, _, where in rows)
            state = (
                "not available"
                if rows and rows[0][2] == "?"
                else f"{sum(bool(where) for *_, where in rows)} of {len(rows)}"
            )
            print(f"  {source['source']}: {state}")
            for place, line, where in rows:
                print(f"    {where or 'MISSING':10} {place}: {line}")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
