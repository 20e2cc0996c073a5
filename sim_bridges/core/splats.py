"""Gaussian splats as a camera's background: a small rasteriser in torch, and its files.

Kerbl et al. 2023, arXiv 2308.04079. It projects each Gaussian to the picture (EWA; Zwicker et al.
2001), sorts by depth and composites front to back, tile by tile. It is differentiable and runs on
any device. Large scenes need a rasteriser on a GPU, such as gsplat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.core.errors import RlinfError
from rlinf_core.specs.frames import CHANNELS, frames_fault

TILE = 16  # pixels
NEAR_M = 0.02
BLUR = 0.3  # variance that each projection gets, so that it covers a pixel [pixels^2]
REACH = 3.0  # standard deviations up to which a Gaussian is drawn
SH_0 = 0.28209479177387814  # value of the constant spherical harmonic
FIELDS = (
    *("x", "y", "z"),
    *("f_dc_0", "f_dc_1", "f_dc_2"),
    "opacity",
    *("scale_0", "scale_1", "scale_2"),
    *("rot_0", "rot_1", "rot_2", "rot_3"),
)
PLY_TYPES = {"float": "<f4", "float32": "<f4", "double": "<f8", "uchar": "u1", "uint8": "u1"}
MAX_GAUSSIANS = 5_000_000
MAX_LOG_SCALE = 20.0  # larger Gaussians overflow float32
MIN_QUATERNION = 1e-6  # length below which a quaternion has no direction
TURN_TOLERANCE = 1e-3  # allowed error of the entries of a rotation times its transpose


@dataclass(frozen=True)
class Splats:
    """N Gaussians, with the parameters of a 3DGS file.

    Attributes:
        positions: (N, 3) [m].
        colours: (N, 3) constant spherical harmonics; ``0.5 + SH_0 * colours`` is RGB.
        opacities: (N,) logits.
        scales: (N, 3) logarithms of the standard deviations [m].
        rotations: (N, 4) quaternions wxyz.
    """

    positions: Tensor
    colours: Tensor
    opacities: Tensor
    scales: Tensor
    rotations: Tensor

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class View:
    """A pinhole camera that looks along its negative z axis, with y up, as in MuJoCo.

    Attributes:
        position: (3,) [m].
        rotation: (3, 3) from the camera's axes to the world's.
        vertical_fov: [rad].
    """

    position: np.ndarray
    rotation: np.ndarray
    vertical_fov: float


def check_view(view: View, name: str) -> None:
    """Check a camera's pose and field of view.

    Args:
        view: the camera.
        name: the camera's name in the message, such as the number of its picture.

    Raises:
        RlinfError: a value is not finite, a shape is wrong, or the rotation is none.
    """
    position, rotation = (np.asarray(part, float) for part in (view.position, view.rotation))
    remedy = "Export the camera poses again, or remove this picture"
    if position.shape != (3,) or rotation.shape != (3, 3):
        raise RlinfError(
            f"{name}: expected a position of shape (3,) and a rotation of shape (3, 3), got "
            f"{position.shape} and {rotation.shape}. {remedy}"
        )
    if not (np.isfinite(position).all() and np.isfinite(rotation).all()):
        raise RlinfError(
            f"{name}: expected a finite camera pose, got position {position.tolist()} and rotation "
            f"{rotation.tolist()}. {remedy}"
        )
    deviation = float(np.abs(rotation @ rotation.T - np.eye(3)).max())
    if deviation > TURN_TOLERANCE or np.linalg.det(rotation) < 0:
        fault = (
            f"one whose product with its transpose deviates from the identity by {deviation:.3g}"
            if deviation > TURN_TOLERANCE
            else "a mirror image, with determinant -1"
        )
        raise RlinfError(
            f"{name}: expected a rotation matrix (orthonormal, determinant 1), got {fault}. "
            f"{remedy}"
        )
    if not 0.0 < view.vertical_fov < np.pi:
        raise RlinfError(
            f"{name}: expected a vertical field of view between 0 and pi rad, got "
            f"{view.vertical_fov}. Correct fl_y or camera_angle_x"
        )


def _check_pictures(views: Sequence[View], pictures: np.ndarray) -> None:
    """Raise RlinfError if pictures are not (K, H, W, 3) uint8, one for each sound view."""
    remedy = "Pass one picture for each view"
    if not views:
        raise RlinfError(f"pictures of splats: expected at least one view, got none. {remedy}")
    if fault := frames_fault(pictures, (len(views), None, None, CHANNELS)):
        raise RlinfError(f"pictures of splats: {fault}. {remedy}")
    for number, view in enumerate(views):
        check_view(view, f"picture {number}")


def render(splats: Splats, view: View, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the picture (H, W, 3) in [0, 1] over black, and its opacity (H, W).

    Raises:
        RlinfError: the view is no camera pose; see ``check_view``.
    """
    check_view(view, "a view of splats")
    device, dtype = splats.positions.device, splats.positions.dtype
    centres, spread, depth, visible = _projected(splats, view, height, width)
    picture = torch.zeros(height, width, 3, device=device, dtype=dtype)
    opacity = torch.zeros(height, width, device=device, dtype=dtype)
    order = torch.argsort(depth[visible])
    index = torch.nonzero(visible)[:, 0][order]
    if not len(index):
        return picture, opacity
    centres, spread = centres[index], spread[index]
    colours = (0.5 + SH_0 * splats.colours[index]).clamp_min(0.0)
    peaks = torch.sigmoid(splats.opacities[index])
    a, b, c = spread[:, 0], spread[:, 1], spread[:, 2]
    determinant = (a * c - b * b).clamp_min(1e-9)
    inverse = torch.stack([c, -b, a], 1) / determinant[:, None]
    reach = REACH * torch.stack([a, c], 1).sqrt()
    low, high = (centres - reach).detach(), (centres + reach).detach()
    rows, columns = [], []
    for top in range(0, height, TILE):
        row, row_opacity = [], []
        bottom = min(top + TILE, height)
        inside_row = (low[:, 1] < bottom) & (high[:, 1] >= top)
        for left in range(0, width, TILE):
            right = min(left + TILE, width)
            chosen = torch.nonzero(inside_row & (low[:, 0] < right) & (high[:, 0] >= left))[:, 0]
            tile, alpha = _tile(
                (centres[chosen], inverse[chosen], colours[chosen], peaks[chosen]),
                (top, bottom, left, right),
            )
            row.append(tile)
            row_opacity.append(alpha)
        rows.append(torch.cat(row, 1))
        columns.append(torch.cat(row_opacity, 1))
    return torch.cat(rows, 0), torch.cat(columns, 0)


def _projected(
    splats: Splats, view: View, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the Gaussians in the picture.

    Centres (N, 2) [pixels], covariances xx, xy, yy (N, 3), depth (N,) [m], and a mask (N,) of those
    in front of the camera and near the picture.
    """
    like = splats.positions
    # to the axes of computer vision: x right, y down, z forward
    axes = torch.tensor(view.rotation @ np.diag([1.0, -1.0, -1.0])).to(like)
    local = (like - torch.tensor(np.asarray(view.position, float)).to(like)) @ axes
    depth = local[:, 2]
    z = depth.clamp_min(NEAR_M)
    focal = 0.5 * height / float(np.tan(view.vertical_fov / 2))
    middle = torch.tensor([width / 2.0, height / 2.0]).to(like)
    centres = middle + focal * local[:, :2] / z[:, None]
    covariance = _covariances(splats)
    zeros = torch.zeros_like(z)
    # slopes of the projection; bounded, because far outside of the picture they explode
    bound = 1.3 * max(width, height) / (2.0 * focal)
    x, y = (torch.clamp(local[:, axis] / z, -bound, bound) for axis in (0, 1))
    jacobian = (
        torch.stack(
            [
                torch.stack([1.0 / z, zeros, -x / z], 1),
                torch.stack([zeros, 1.0 / z, -y / z], 1),
            ],
            1,
        )
        * focal
    )
    turned = jacobian @ axes.T
    flat = turned @ covariance @ turned.transpose(1, 2)
    spread = torch.stack([flat[:, 0, 0] + BLUR, flat[:, 0, 1], flat[:, 1, 1] + BLUR], 1)
    reach = REACH * spread[:, [0, 2]].detach().sqrt()
    size = torch.tensor([float(width), float(height)]).to(like)
    near = ((centres + reach >= 0) & (centres - reach < size)).all(1)
    return centres, spread, depth, near & (depth > NEAR_M)


def _covariances(splats: Splats) -> Tensor:
    """Return the covariances (N, 3, 3) in the world [m^2]."""
    w, x, y, z = torch.nn.functional.normalize(splats.rotations, dim=1).unbind(1)
    rotation = torch.stack(
        [
            *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        ],
        1,
    ).reshape(-1, 3, 3)
    half = rotation * splats.scales.exp()[:, None, :]
    return half @ half.transpose(1, 2)


def _tile(
    parts: tuple[Tensor, Tensor, Tensor, Tensor], bounds: tuple[int, int, int, int]
) -> tuple[Tensor, Tensor]:
    """Composite the sorted Gaussians of a tile; return its picture (h, w, 3) and opacity."""
    centres, inverse, colours, peaks = parts
    top, bottom, left, right = bounds
    shape = bottom - top, right - left
    if not len(centres):
        empty = torch.zeros(*shape, 3, device=centres.device, dtype=centres.dtype)
        return empty, empty[..., 0]
    y = torch.arange(top, bottom, device=centres.device, dtype=centres.dtype) + 0.5
    x = torch.arange(left, right, device=centres.device, dtype=centres.dtype) + 0.5
    dy, dx = y - centres[:, 1:], x - centres[:, :1]
    power = (
        inverse[:, 0, None, None] * (dx * dx)[:, None, :]
        + inverse[:, 2, None, None] * (dy * dy)[:, :, None]
        + 2.0 * inverse[:, 1, None, None] * dy[:, :, None] * dx[:, None, :]
    )
    alpha = (peaks[:, None, None] * torch.exp(-0.5 * power)).clamp_max(0.99).flatten(1)
    passed = torch.cumprod(1.0 - alpha, 0)
    before = torch.cat([torch.ones_like(passed[:1]), passed[:-1]])
    tile = ((alpha * before).T @ colours).reshape(*shape, 3)
    return tile, (1.0 - passed[-1]).reshape(shape)


def fit(
    splats: Splats, views: list[View], pictures: np.ndarray, updates: int = 200, rate: float = 0.02
) -> Splats:
    """Fit Gaussians to pictures from known views, by Adam on the mean absolute difference.

    Args:
        splats: where they begin, such as ``scattered``.
        views: K cameras.
        pictures: (K, H, W, 3) uint8.
        updates: gradient steps; each takes one picture.
        rate: learning rate of colours and opacities; positions and sizes take a tenth and a half.

    Raises:
        RlinfError: a view or the pictures are damaged, or the fit diverged.
    """
    _check_pictures(views, pictures)
    names = [field.name for field in fields(Splats)]
    values = {name: getattr(splats, name).clone().requires_grad_() for name in names}
    rates = {"positions": 0.1, "scales": 0.5, "rotations": 0.5}
    optimiser = torch.optim.Adam(
        [{"params": [values[name]], "lr": rate * rates.get(name, 1.0)} for name in names]
    )
    targets = torch.from_numpy(np.asarray(pictures, np.float32) / 255.0).to(splats.positions)
    height, width = targets.shape[1:3]
    for update in range(updates):
        number = update % len(views)
        picture, _ = render(Splats(**values), views[number], height, width)
        optimiser.zero_grad()
        (picture - targets[number]).abs().mean().backward()
        optimiser.step()
    fitted = Splats(**{name: value.detach() for name, value in values.items()})
    if diverged := [name for name in names if not bool(torch.isfinite(values[name]).all())]:
        raise RlinfError(
            f"a fit of splats: expected finite {', '.join(diverged)}, got others after {updates} "
            f"updates. Use a smaller rate than {rate}, or another box"
        )
    return fitted


@torch.no_grad()
def picture_error(splats: Splats, views: list[View], pictures: np.ndarray) -> float:
    """Return the mean absolute difference from pictures (K, H, W, 3) uint8 (of 255).

    Raises:
        RlinfError: a view or the pictures are damaged.
    """
    _check_pictures(views, pictures)
    height, width = pictures.shape[1:3]
    drawn = [255.0 * render(splats, view, height, width)[0].numpy() for view in views]
    return float(np.abs(np.stack(drawn) - pictures).mean())


def read_transforms(path: Path, height: int) -> tuple[list[View], np.ndarray]:
    """Read the pictures and camera poses of nerfstudio's transforms.json.

    Args:
        path: the file; pictures are beside it.
        height: of the returned pictures [pixels].

    Returns:
        K views, and pictures (K, H, W, 3) uint8.

    Raises:
        RlinfError: the file, a picture or a camera pose is damaged, or pictures have other
            proportions. The message names the picture by its number in ``frames``, from 0 on.
    """
    import cv2

    expected = f"{path}: expected transforms.json with frames, poses and fl_y or camera_angle_x"
    try:
        document = json.loads(path.read_text())
        frames = list(document["frames"])
        entries = [(str(frame["file_path"]), frame["transform_matrix"]) for frame in frames]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RlinfError(f"{expected}, got: {error!r}. Write it with nerfstudio") from error
    if not frames:
        raise RlinfError(f"{expected}, got no frames. Write it with nerfstudio")
    names = [f"{path}: picture {number} ({file})" for number, (file, _) in enumerate(entries)]
    poses = [_pose(matrix, name) for name, (_, matrix) in zip(names, entries, strict=True)]
    views, pictures = [], []
    for name, pose, (file, _) in zip(names, poses, entries, strict=True):
        picture = cv2.imread(str(path.parent / file))
        if picture is None:
            raise RlinfError(
                f"{name}: expected a picture, got none that can be read. Correct file_path"
            )
        full_height, full_width = picture.shape[:2]
        if "fl_y" in document:
            height_px = _number(document.get("h", full_height), f"{path}: h")
            fov = 2 * np.arctan(0.5 * height_px / _number(document["fl_y"], f"{path}: fl_y"))
        elif "camera_angle_x" in document:
            angle = _number(document["camera_angle_x"], f"{path}: camera_angle_x", np.pi)
            fov = 2 * np.arctan(np.tan(angle / 2) * full_height / full_width)
        else:
            raise RlinfError(f"{expected}, got neither of the last two. Write it with nerfstudio")
        width = round(full_width * height / full_height)
        resized = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
        pictures.append(resized[..., ::-1])
        views.append(View(pose[:3, 3], pose[:3, :3], float(fov)))
        check_view(views[-1], name)
        if resized.shape != pictures[0].shape:
            raise RlinfError(
                f"{name}: expected the proportions of picture 0, got {full_width} x {full_height} "
                "pixels. Use pictures of one size"
            )
    return views, np.stack(pictures)


def _pose(matrix: object, name: str) -> np.ndarray:
    """Return a camera pose (4, 4) from JSON, with its last row checked."""
    remedy = "Export the camera poses again, or remove this picture"
    try:
        pose = np.array(matrix, float)
    except (ValueError, TypeError) as error:
        raise RlinfError(
            f"{name}: expected a transform_matrix of 4 x 4 numbers, got {error}. {remedy}"
        ) from error
    if pose.shape != (4, 4):
        raise RlinfError(
            f"{name}: expected a transform_matrix of 4 x 4 numbers, got shape {pose.shape}. "
            f"{remedy}"
        )
    if not np.allclose(pose[3], [0.0, 0.0, 0.0, 1.0], atol=1e-6):
        raise RlinfError(
            f"{name}: expected a transform_matrix whose last row is 0 0 0 1, got "
            f"{pose[3].tolist()}. {remedy}"
        )
    return pose


def _number(value: object, name: str, below: float = np.inf) -> float:
    """Return a positive, finite number from JSON."""
    bounds = "above 0" if np.isinf(below) else f"between 0 and {below:.4f}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < below:
        raise RlinfError(f"{name}: expected a number {bounds}, got {value!r}. Correct the file")
    return float(value)


def scattered(
    count: int, low: Sequence[float] | np.ndarray, high: Sequence[float] | np.ndarray, seed: int = 0
) -> Splats:
    """Return grey Gaussians at random places in a box, to begin a fit.

    Raises:
        RlinfError: the box is not finite, or has no volume.
    """
    corners = np.array([low, high], float)
    if not (np.isfinite(corners).all() and (corners[0] < corners[1]).all()):
        raise RlinfError(
            f"a box of splats: expected finite corners, the low one below the high one on each "
            f"axis, got {corners[0].tolist()} and {corners[1].tolist()}. Correct --box"
        )
    random = torch.Generator().manual_seed(seed)
    low_m, high_m = (torch.tensor(np.asarray(bound, float)).float() for bound in (low, high))
    size = float((high_m - low_m).max()) / count ** (1 / 3)
    return Splats(
        low_m + (high_m - low_m) * torch.rand(count, 3, generator=random),
        torch.zeros(count, 3),
        torch.zeros(count),
        torch.full((count, 3), float(np.log(0.5 * size))),
        torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(count, 1),
    )


def save(splats: Splats, path: Path) -> Path:
    """Write the PLY file of 3DGS and of its viewers."""
    columns = [
        *(splats.positions, splats.colours, splats.opacities[:, None]),
        *(splats.scales, splats.rotations),
    ]
    rows = torch.cat(columns, 1).detach().cpu().numpy().astype("<f4")
    head = ["ply", "format binary_little_endian 1.0", f"element vertex {len(rows)}"]
    head += [f"property float {name}" for name in FIELDS] + ["end_header", ""]
    content = "\n".join(head).encode() + rows.tobytes()
    return write_atomically(path, lambda temporary: temporary.write_bytes(content))


def load(path: Path) -> Splats:
    """Read a PLY file of 3DGS; spherical harmonics beyond the constant ones are left out.

    Raises:
        RlinfError: it is no such file, or it is damaged.
    """
    expected = f"{path}: expected a PLY file of Gaussian splats (binary, little endian)"
    if not path.is_file():
        raise RlinfError(f"{expected}, got no file. Name the file that a splat trainer wrote")
    content = path.read_bytes()
    end = content.find(b"end_header\n")
    lines = content[: max(end, 0)].decode("ascii", "replace").splitlines()
    if not lines or lines[0] != "ply" or "format binary_little_endian 1.0" not in lines:
        raise RlinfError(f"{expected}, got another file. Export it again as binary PLY")
    try:
        count = next(int(line.split()[2]) for line in lines if line.startswith("element vertex"))
        kinds = [line.split()[1:] for line in lines if line.startswith("property")]
        record = np.dtype([(name, PLY_TYPES[kind]) for kind, name in kinds])
    except (StopIteration, ValueError, KeyError, IndexError) as error:
        raise RlinfError(
            f"{expected}, got a head that cannot be read: {error}. Export it again"
        ) from error
    if missing := [name for name in FIELDS if name not in (record.names or ())]:
        raise RlinfError(f"{expected}, got one without {', '.join(missing)}. Export it again")
    body = content[end + len(b"end_header\n") :]
    if not 0 < count <= MAX_GAUSSIANS or len(body) < count * record.itemsize:
        raise RlinfError(
            f"{expected} with 1 to {MAX_GAUSSIANS} Gaussians, got {count} and {len(body)} bytes. "
            "Export it again, with fewer"
        )
    rows = np.frombuffer(body, record, count)
    table = torch.from_numpy(np.stack([rows[name] for name in FIELDS], 1).astype(np.float32))
    for fault, bad in (
        ("values that are not finite", ~torch.isfinite(table).all(1)),
        ("a quaternion of length 0", table[:, 10:14].norm(dim=1) < MIN_QUATERNION),
        (f"a scale above exp({MAX_LOG_SCALE:g}) m", (table[:, 7:10] > MAX_LOG_SCALE).any(1)),
    ):
        if len(rows_at_fault := torch.nonzero(bad)[:, 0]):
            raise RlinfError(
                f"{expected}, got {fault} in Gaussian {int(rows_at_fault[0])} and "
                f"{len(rows_at_fault) - 1} others. Export it again"
            )
    return Splats(table[:, :3], table[:, 3:6], table[:, 6], table[:, 7:10], table[:, 10:14])


class Background:
    """Splats behind what a simulator draws, each view rendered once.

    Args:
        splats: Gaussians in the frame of the simulator's world.
    """

    def __init__(self, splats: Splats) -> None:
        self.splats = replace(splats)
        self._pictures: dict[tuple, np.ndarray] = {}

    def behind(self, picture: np.ndarray, empty: np.ndarray, view: View) -> np.ndarray:
        """Return a picture (H, W, 3) uint8 with the splats where it is empty (H, W)."""
        height, width = empty.shape
        place = np.concatenate([view.position, np.ravel(view.rotation), [view.vertical_fov]])
        key = (height, width, place.round(6).tobytes())
        if key not in self._pictures:
            with torch.no_grad():
                drawn, opacity = render(self.splats, view, height, width)
            rgba = torch.cat([drawn, opacity[..., None]], 2).numpy()
            if len(self._pictures) >= 8:  # a camera on the arm moves at each time step
                self._pictures.pop(next(iter(self._pictures)))
            self._pictures[key] = rgba
        rgba = self._pictures[key]
        mixed = 255.0 * rgba[..., :3] + (1.0 - rgba[..., 3:]) * picture
        return np.where(empty[..., None], np.clip(mixed, 0, 255), picture).astype(np.uint8)
