"""Reads an arm's MJCF or URDF into MuJoCo's ``MjSpec``.

An error names file, element, expectation and remedy.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import RlinfError

MESHES = (".stl", ".obj", ".msh")  # formats that MuJoCo reads
RANGE_RAD = 3.14  # range of a revolute joint without limits


@dataclass
class ModelSource:
    """A model as its file defines it.

    Attributes:
        spec: MuJoCo's spec, not compiled.
        notes: differences from the file, for the user.
        mimics: a URDF's mimic joints: joint to (leader, multiplier, offset).
    """

    path: Path
    spec: Any
    notes: list[str] = field(default_factory=list)
    mimics: dict[str, tuple[str, float, float]] = field(default_factory=dict)


def load(path: Path) -> ModelSource:
    """Read a model.

    Raises:
        RlinfError: the file, or a file that it names, is missing or wrong.
    """
    root = _parse(path)
    if root.tag == "robot":
        return _load_urdf(path, root)
    if root.tag != "mujoco":
        raise RlinfError(
            f"{path}: expected the root <mujoco> of an MJCF or <robot> of a URDF, got "
            f"<{root.tag}>. A xacro becomes a URDF by: xacro arm.xacro > arm.urdf"
        )
    return ModelSource(path, _load_mjcf(path))


def _parse(path: Path) -> xml.Element:
    if not path.is_file():
        raise RlinfError(
            f"{path}: expected a file with an MJCF or a URDF, got "
            f"{'a folder' if path.is_dir() else 'no such file'}. Name the arm's .xml or .urdf"
        )
    try:
        text = path.read_text()
        prefixes = set(re.findall(r"(?:</?|\s)([A-Za-z_]\w*):[A-Za-z_]\w*(?:\s*=|[\s/>])", text))
        for prefix in prefixes - {"xmlns"}:  # undeclared prefixes, which MuJoCo and ROS ignore
            if f"xmlns:{prefix}" not in text:
                text = re.sub(rf"(</?|\s){prefix}:", rf"\1{prefix}_", text)
        return xml.fromstring(text)
    except (xml.ParseError, UnicodeDecodeError, ValueError) as error:
        raise RlinfError(
            f"{path}: expected well-formed XML, got: {error}. Correct that line"
        ) from error


def _load_mjcf(path: Path) -> Any:
    import mujoco

    _check_files(path)
    try:
        return mujoco.MjSpec.from_file(str(path))
    except (ValueError, mujoco.FatalError) as error:
        raise _compile_error(path, error) from error


def compile_model(source: ModelSource) -> Any:
    """Return MuJoCo's model of a source.

    Raises:
        RlinfError: MuJoCo refuses it; the message has MuJoCo's reason.
    """
    import mujoco

    for _ in range(len(source.spec.meshes) + 1):
        try:
            return source.spec.compile()
        except (ValueError, mujoco.FatalError) as error:
            flat = re.search(
                r"mesh volume is too small: (.*?) \. Try setting inertia to shell", str(error)
            )
            mesh = source.spec.mesh(flat.group(1)) if flat else None
            if mesh is None:
                raise _compile_error(source.path, error) from error
            mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL  # the mesh bounds no volume
    raise RlinfError(
        f"{source.path}: expected meshes that MuJoCo compiles as shells. Repair them in Blender"
    )


def _compile_error(path: Path, error: Exception) -> RlinfError:
    reason = " ".join(str(error).split())
    return RlinfError(
        f"{path}: expected a model that MuJoCo compiles, got: {reason}. Correct that element; "
        f"`python -m mujoco.viewer --mjcf={path}` shows the same error"
    )


def _check_files(path: Path) -> None:
    """Check that the meshes, textures and includes of an MJCF exist.

    Raises:
        RlinfError: files are missing; the message names them.
    """
    root = _parse(path)
    missing: list[str] = []
    compiler: dict[str, str] = {}
    for item in root.iter("compiler"):
        compiler |= item.attrib
    assets = compiler.get("assetdir", "")
    folders = {
        "mesh": compiler.get("meshdir", assets),
        "texture": compiler.get("texturedir", assets),
        "hfield": compiler.get("meshdir", assets),
        "include": "",
        "model": "",
    }
    for tag, folder in folders.items():
        for item in root.iter(tag):
            name = item.get("file")
            if name and not (path.parent / folder / name).is_file():
                missing.append(f'<{tag} file="{name}"> at {path.parent / folder / name}')
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise RlinfError(
            f"{path}: expected all files that it references; missing: "
            f"{', '.join(missing[:3])}{more}. Copy the model's whole folder with its assets, or "
            "correct meshdir in <compiler>"
        )


def _load_urdf(path: Path, root: xml.Element) -> ModelSource:
    """Return a URDF's source.

    Meshes get absolute paths. MuJoCo keeps the fixed links, because one carries the tool's frame.
    """
    import mujoco

    notes: list[str] = []
    _check_links(path, root)
    _resolve_meshes(path, root, notes)
    mimics = {}
    for joint in root.findall("joint"):
        _check_joint(path, joint)
        _complete_limits(path, joint, notes)
        if (mimic := joint.find("mimic")) is not None:
            mimics[joint.get("name", "")] = (
                mimic.get("joint", ""),
                float(mimic.get("multiplier", 1)),
                float(mimic.get("offset", 0)),
            )
    _set_compiler(root)
    try:
        spec = mujoco.MjSpec.from_string(xml.tostring(root, encoding="unicode"))
    except (ValueError, mujoco.FatalError) as error:
        raise _compile_error(path, error) from error
    names = {joint.name for joint in spec.joints}
    for name, (leader, multiplier, offset) in dict(mimics).items():
        if not {name, leader} <= names:
            notes.append(
                f'joint {name}: <mimic joint="{leader}"> does not connect two moving joints; it is '
                "left out"
            )
            del mimics[name]
            continue
        equality = spec.add_equality()
        equality.type = mujoco.mjtEq.mjEQ_JOINT
        equality.name1 = name
        equality.name2 = leader
        equality.objtype = mujoco.mjtObj.mjOBJ_JOINT
        equality.data[:5] = [offset, multiplier, 0, 0, 0]
    return ModelSource(path, spec, notes, mimics)


def _check_joint(path: Path, joint: xml.Element) -> None:
    """Raise RlinfError for a joint of a floating base."""
    if joint.get("type") in ("floating", "planar"):
        raise RlinfError(
            f'{path}: <joint name="{joint.get("name", "")}" type="{joint.get("type")}">: expected '
            "an arm with a fixed base, of revolute, continuous, prismatic and fixed joints. Remove "
            "the joint and its parent link"
        )


def _complete_limits(path: Path, joint: xml.Element, notes: list[str]) -> None:
    """Give a revolute joint without limits RANGE_RAD; refuse such a prismatic joint."""
    name, kind, limit = joint.get("name", ""), joint.get("type"), joint.find("limit")
    lacks_range = limit is None or float(limit.get("lower", 0)) >= float(limit.get("upper", 0))
    if kind == "prismatic" and lacks_range:
        raise RlinfError(
            f'{path}: <joint name="{name}" type="prismatic">: expected <limit lower=... '
            "upper=.../> with lower < upper [m], got none. Add it"
        )
    if kind == "revolute" and lacks_range:
        limit = limit if limit is not None else xml.SubElement(joint, "limit")
        limit.attrib |= {"lower": str(-RANGE_RAD), "upper": str(RANGE_RAD)}
        limit.attrib.setdefault("effort", "1000")
        notes.append(
            f"joint {name} has no limits in the file; ±{RANGE_RAD:g} rad are used. Add <limit "
            "lower=... upper=.../> to change that"
        )
    if limit is not None and float(limit.get("effort", 0)) <= 0:
        # 0 means unknown in many URDFs, not an arm without force
        limit.attrib.pop("effort", None)


def _set_compiler(root: xml.Element) -> None:
    """Replace extensions of other programs by the settings of MuJoCo's compiler."""
    foreign = ("mujoco", "gazebo", "transmission", "ros2_control")
    for element in [child for child in root if child.tag in foreign]:
        root.remove(element)
    xml.SubElement(
        xml.SubElement(root, "mujoco"),
        "compiler",
        {
            "fusestatic": "false",
            "discardvisual": "false",
            "strippath": "false",
            "balanceinertia": "true",
            "boundmass": "0.001",
            "boundinertia": "0.000001",
        },
    )


def _check_links(path: Path, root: xml.Element) -> None:
    links = {link.get("name") for link in root.findall("link")}
    if not links:
        raise RlinfError(
            f"{path}: expected <link> elements below <robot>, got none. A xacro must be expanded "
            f"first: xacro {path.name} > arm.urdf"
        )
    for joint in root.findall("joint"):
        for tag in ("parent", "child"):
            end = joint.find(tag)
            if end is None or end.get("link") not in links:
                raise RlinfError(
                    f'{path}: <joint name="{joint.get("name")}">: expected <{tag} link=...> to '
                    f"name a "
                    f"link, got {None if end is None else end.get('link')!r}. Add that link or "
                    f"correct it"
                )


def _resolve_meshes(path: Path, root: xml.Element, notes: list[str]) -> None:
    """Resolve package:// and relative names; drop unreadable meshes, with a note."""
    for link in root.findall("link"):
        for kind in ("visual", "collision"):
            for shape in link.findall(kind):
                mesh = shape.find("geometry/mesh")
                if mesh is None:
                    continue
                name = mesh.get("filename", "")
                file, remedy = _find_mesh(path, name)
                if not remedy:
                    mesh.set("filename", str(file))
                    continue
                link.remove(shape)
                purpose = "see" if kind == "visual" else "touch"
                notes.append(
                    f"<{kind}> of link {link.get('name')}: mesh {name} {remedy}. Without it, the "
                    f"link has no shape to {purpose}"
                )


def _find_mesh(path: Path, name: str) -> tuple[Path | None, str]:
    """Return a mesh's file, and the remedy if MuJoCo cannot read it; else an empty text."""
    candidates = list(_mesh_candidates(path, name))
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        return None, (
            f"is in none of {', '.join(map(str, candidates[:3]))}. Copy the package's meshes "
            "beside the URDF"
        )
    if file.suffix.lower() not in MESHES:
        for suffix in MESHES:
            if (converted := file.with_suffix(suffix)).is_file():
                return converted, ""
        return file, (
            f"is a {file.suffix} file, and MuJoCo reads {', '.join(MESHES)}. Convert it, for "
            "example with trimesh or Blender"
        )
    if _is_ascii_stl(file):
        return file, "is an STL of text, and MuJoCo reads binary ones. Save it as a binary STL"
    return file, ""


def _is_ascii_stl(file: Path) -> bool:
    """Return whether a file is an ASCII STL.

    A binary STL's size follows from the number of faces in its header.
    """
    if file.suffix.lower() != ".stl":
        return False
    with file.open("rb") as stream:
        head = stream.read(84)
    return file.stat().st_size != 84 + 50 * int.from_bytes(head[80:], "little")


def _mesh_candidates(path: Path, name: str) -> Iterator[Path]:
    """Yield the possible paths of a mesh.

    package://PACKAGE/FILE lies below a folder PACKAGE, or beside the URDF.
    """
    if match := re.match(r"(?:package|model)://([^/]+)/(.*)", name):
        package, inside = match.groups()
        for folder in path.resolve().parents:
            if folder.name == package:
                yield folder / inside
            yield folder / package / inside
            if len(folder.parts) < len(path.resolve().parts) - 4:
                break
        for folder in list(path.resolve().parents)[:3]:
            yield folder / inside
    else:
        name = re.sub("^file://", "", name)
        yield path.parent.resolve() / name
