"""LeRobot's asynchronous inference (0.4 to 0.6): its robot client asks this server over gRPC.

The client sends pickles and reads one. ``unpickle`` builds only plain values, arrays and records of
the client, and refuses a pickle that names another class. The protocol has neither a key nor
encryption, so the server listens on this machine alone. Other machines need ``ssh -L``.

    Ready, SendPolicyInstructions    the client's features, which must be the policy's
    SendObservations                 the newest observation; an older one that waits is dropped
    GetActions                       a chunk of actions [SI], each with its time step
"""

from __future__ import annotations

import asyncio
import io
import pickle
import pickletools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import torch
from torch.nn import functional as F

from rlinf_core.core.errors import ServingError, SpecError, escape_ascii
from rlinf_core.deploy.serving import lerobot_pb2 as messages
from rlinf_core.deploy.serving.protocol import KINDS, MAX_BYTES, PROMPT, Request, read_request
from rlinf_core.deploy.serving.server import PolicyServer
from rlinf_core.specs.arrays import StationSpec

SERVICE, HEALTH = "transport.AsyncInference", "grpc.health.v1.Health"
SERVING = b"\x08\x01"  # a HealthCheckResponse of status SERVING
WAIT_S = 1.0  # GetActions waits this long for an observation; then its answer is empty
CLIENTS = 64
# of a pickle; an observation of 50 numbers and 4 cameras takes some hundred
MAX_OPERATIONS = 10_000
STATE, PICTURES, TASK = "observation.state", "observation.images.", "task"
RECORDS = {
    ("lerobot.async_inference.helpers", name) for name in ("RemotePolicyConfig", "TimedObservation")
} | {("lerobot.configs.types", "PolicyFeature")}
FEATURE_TYPE = ("lerobot.configs.types", "FeatureType")
# how a pickle names the client's class
ACTION = b"clerobot.async_inference.helpers\nTimedAction\n"


# Pickles
def unpickle(data: bytes) -> Any:
    """Return the value of a client's pickle.

    Raises:
        SpecError: it names a class that is neither LeRobot's nor an array's.
    """
    try:
        for count, _ in enumerate(pickletools.genops(data)):
            if count >= MAX_OPERATIONS:
                raise SpecError(
                    f"lerobot: expected a pickle of at most {MAX_OPERATIONS} operations, got more"
                )
        return _Unpickler(io.BytesIO(data)).load()
    except SpecError:
        raise
    except Exception as error:  # a pickle can raise anything
        raise SpecError(
            f"lerobot: expected a pickle of LeRobot's robot client, got {len(data)} bytes: "
            f"{type(error).__name__}: {escape_ascii(error)[:200]}"
        ) from error


class _Unpickler(pickle.Unpickler):
    """Unpickles only plain values and stand-ins for LeRobot's and NumPy's classes.

    The stand-ins are new for each pickle, so that no pickle changes them for the next one.
    """

    def find_class(self, module: str, name: str) -> Any:
        """See ``pickle.Unpickler``."""
        if (module, name) in RECORDS:
            return type(name, (_Record,), {})
        if (module, name) == FEATURE_TYPE:
            return _Global(str)
        if (
            module
            in (
                "numpy",
                "numpy.core.multiarray",
                "numpy._core.multiarray",
                "numpy.core.numeric",
                "numpy._core.numeric",
            )
            and name in _NUMPY
        ):
            return _Global(_NUMPY[name])
        raise SpecError(
            f"lerobot: expected numbers, texts, arrays and LeRobot's records, got "
            f"{escape_ascii(module)[:80]}.{escape_ascii(name)[:80]}. It is not unpickled"
        )


class _Record:
    """A record of the client. Its fields are attributes."""


class _Global:
    """A function that a pickle may call but not change."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise SpecError("lerobot: expected no state of a function")


class _Dtype:
    """A dtype of numbers. The state that a pickle gives it is ignored."""

    def __init__(self, name: Any, *_: Any) -> None:
        if (
            not isinstance(name, str)
            or name[:1] not in KINDS
            or not name[1:].isdigit()
            or int(name[1:]) > 8
        ):
            raise SpecError(f"lerobot: expected a dtype of numbers, got {escape_ascii(name)[:40]}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """An array. Its state in the pickle holds its numbers."""

    def __init__(self, *_: Any) -> None:
        self.array = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, transposed, data = state
        self.array = _filled(data, dtype, shape, bool(transposed))


def _filled(data: Any, dtype: Any, shape: Any, transposed: bool = False) -> np.ndarray:
    if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype) or len(shape) > 8:
        raise SpecError("lerobot: expected the bytes, dtype and shape of an array")
    values = np.frombuffer(data, dtype.dtype)
    if any(type(side) is not int or side < 0 for side in shape) or np.prod(
        [int(side) for side in shape]
    ) != len(values):
        raise SpecError(
            f"lerobot: expected {len(values)} numbers of an array, got the shape "
            f"{escape_ascii(shape)[:80]}"
        )
    return values.reshape(shape[::-1]).T if transposed else values.reshape(shape)


def _in_order(data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    return _filled(data, dtype, shape, order == "F")


def _scalar(dtype: Any, data: Any) -> Any:
    return _filled(data, dtype, ())[()]


_NUMPY: dict[str, Callable[..., Any]] = {
    "_reconstruct": _Array,
    "ndarray": _Array,
    "dtype": _Dtype,
    "scalar": _scalar,
    "_frombuffer": _in_order,
}


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, _Array) else value


class _TimedAction:
    """LeRobot's record of an action, pickled under its own name."""


_PYTHONS: Any = pickle._Pickler  # the one in Python, whose parts can be replaced


class _Pickler(_PYTHONS):
    """Writes LeRobot's name of ``_TimedAction``."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if obj is _TimedAction:
            self.write(ACTION)
            self.memoize(obj)
        else:
            super().save_global(obj, name)

    dispatch = {**_PYTHONS.dispatch, type: save_global}


def pickle_actions(actions: np.ndarray, timestamp: float, timestep: int, period: float) -> bytes:
    """Return a pickled list of LeRobot's ``TimedAction``.

    Args:
        actions: (H, A).
        timestamp: time of the observation [s, the client's clock].
        timestep: time step of the observation.
        period: duration of a time step [s].
    """
    timed = []
    for index, action in enumerate(torch.from_numpy(actions.astype(np.float32))):
        one = _TimedAction()
        vars(one).update(
            timestamp=timestamp + index * period, timestep=timestep + index, action=action.clone()
        )
        timed.append(one)
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=4).dump(timed)
    return buffer.getvalue()


# The service
@dataclass(eq=False)
class LerobotClient:
    """One client.

    Attributes:
        names: names of its state's numbers, in the policy's order.
        actions: number of actions in a chunk that it requests.
        waiting: its newest unanswered observation.
        answered: time steps that have received actions.
    """

    names: list[str] = field(default_factory=list)
    actions: int = 0
    waiting: Any = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    answered: set[int] = field(default_factory=set)


class LerobotService:
    """LeRobot's service; a policy server computes the actions, and has versions and metrics.

    Args:
        server: the policy server.
    """

    def __init__(self, server: PolicyServer) -> None:
        self.server = server
        self.robots = dict[str, LerobotClient]()

    @property
    def spec(self) -> StationSpec:
        """Specs of the served policy."""
        spec: StationSpec = self.server.weights.newest.policy.spec
        return spec

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the handlers of LeRobot's service and of gRPC's health protocol."""
        empty, unary = messages.Empty, grpc.unary_unary_rpc_method_handler

        def handler(call: Callable[..., Any], requests: Any, answers: Any = empty) -> Any:
            return unary(call, requests.FromString, answers.SerializeToString)

        methods = {
            "Ready": handler(self.ready, empty),
            "SendPolicyInstructions": handler(self.instructions, messages.PolicySetup),
            "SendObservations": grpc.stream_unary_rpc_method_handler(
                self.observation, messages.Observation.FromString, empty.SerializeToString
            ),
            "GetActions": handler(self.get_actions, empty, messages.Actions),
        }
        return [
            grpc.method_handlers_generic_handler(SERVICE, methods),
            grpc.method_handlers_generic_handler(HEALTH, {"Check": unary(self.health)}),
        ]

    async def health(self, request: bytes, context: Any) -> bytes:
        """Report SERVING, because the policy is loaded and warmed up before the port listens."""
        return SERVING

    async def ready(self, request: Any, context: Any) -> Any:
        """Forget what the client sent before, and begin a new session."""
        while len(self.robots) >= CLIENTS:
            del self.robots[next(iter(self.robots))]
        self.robots[context.peer()] = LerobotClient()
        return messages.Empty()

    async def instructions(self, request: Any, context: Any) -> Any:
        """Check the client's features.

        Its policy type and path are ignored, because only one policy is served.
        """
        robot = await self._robot(context)
        with CountErrors(self.server) as errors:
            config = unpickle(request.data)
            robot.names, robot.actions = self._features(config), _chunk(config)
        await errors.abort_on_error(context)
        return messages.Empty()

    def _features(self, config: Any) -> list[str]:
        features = getattr(config, "lerobot_features", None)
        if not isinstance(features, dict):
            raise SpecError(
                "lerobot: expected lerobot_features in the client's instructions, got none"
            )
        state = features.get(STATE)
        names = state.get("names") if isinstance(state, dict) else None
        if (
            not isinstance(names, list)
            or len(names) != self.spec.vector_size
            or not all(isinstance(name, str) for name in names)
        ):
            raise SpecError(
                f"lerobot: expected {self.spec.vector_size} names of {STATE} "
                f"({', '.join(item.name for item in self.spec.vectors)}), got "
                f"{escape_ascii(names)[:200]}"
            )
        cameras = {
            str(name).removeprefix(PICTURES) for name in features if str(name).startswith(PICTURES)
        }
        if missing := [image.name for image in self.spec.images if image.name not in cameras]:
            raise SpecError(
                f"lerobot: expected the cameras {', '.join(missing)}, got "
                f"{', '.join(sorted(cameras)) or 'none'}. Give the robot's cameras these names"
            )
        return names

    async def observation(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """Keep the client's newest observation."""
        robot, parts, size = await self._robot(context), [], 0
        async for part in requests:
            parts.append(part.data)
            size += len(part.data)
            if size > MAX_BYTES:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"expected at most {MAX_BYTES >> 20} MiB"
                )
        with CountErrors(self.server) as errors:
            timed = await asyncio.to_thread(unpickle, b"".join(parts))
            timestep = getattr(timed, "timestep", None)
            timestamp = getattr(timed, "timestamp", None)
            if type(timestep) is not int or not isinstance(timestamp, float | int):
                raise SpecError("lerobot: expected an observation with a timestep and a timestamp")
            request = self._request(robot, getattr(timed, "observation", None))
            if getattr(timed, "must_go", False) is True or timestep not in robot.answered:
                robot.waiting = request, float(timestamp), timestep
                robot.arrived.set()
        await errors.abort_on_error(context)
        return messages.Empty()

    def _request(self, robot: LerobotClient, observation: Any) -> Request:
        """Return a client's observation as a request to the policy server.

        Args:
            robot: the client.
            observation: {name of a number: float, camera: (H, W, 3) uint8, task: sentence}.
        """
        if not robot.names:
            raise SpecError("lerobot: expected policy instructions before the first observation")
        if not isinstance(observation, dict):
            raise SpecError(
                f"lerobot: expected a map as an observation, got a {type(observation).__name__}"
            )
        if missing := [name for name in robot.names if name not in observation]:
            raise SpecError(
                f"lerobot: expected {', '.join(missing)} in the observation, got nothing"
            )
        try:
            vectors = np.array(
                [float(_plain(observation[name])) for name in robot.names], np.float32
            )
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"lerobot: expected numbers of {', '.join(robot.names)}, got: {error}"
            ) from error
        message: dict[str, Any] = {"state": vectors}
        for image in self.spec.images:
            message[image.name] = resize_picture(
                _plain(observation.get(image.name)), image.name, image.shape
            )
        if isinstance(task := observation.get(TASK), str) and task:
            message[PROMPT] = task
        return read_request(self.spec, message, self.server.weights.newest.needs_instruction)

    async def get_actions(self, request: Any, context: Any) -> Any:
        """Return the chunk for the newest observation; nothing if none arrives in ``WAIT_S``."""
        robot = await self._robot(context)
        try:
            await asyncio.wait_for(robot.arrived.wait(), WAIT_S)
        except asyncio.TimeoutError:
            return messages.Actions()
        robot.arrived.clear()
        pending, timestamp, timestep = robot.waiting
        started, version = time.monotonic(), self.server.weights.newest
        done = None
        with CountErrors(self.server) as errors:
            done = await self.server.batcher.submit(version.kind(pending), pending)
        await errors.abort_on_error(context)
        assert done is not None
        self.server.metrics.answered(time.monotonic() - started, done.size)
        robot.answered.add(timestep)
        chunk = done.request["actions"][: robot.actions]
        return messages.Actions(
            data=pickle_actions(chunk, timestamp, timestep, 1.0 / self.spec.control_hz)
        )

    async def _robot(self, context: Any) -> LerobotClient:
        robot = self.robots.get(context.peer())
        if robot is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "expected Ready first")
        assert robot is not None
        return robot


def _chunk(config: Any) -> int:
    actions = getattr(config, "actions_per_chunk", None)
    if type(actions) is not int or actions < 1:
        raise SpecError(
            f"lerobot: expected actions_per_chunk of 1 or more, got {escape_ascii(actions)[:40]}"
        )
    return actions


def resize_picture(picture: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a camera's picture in the policy's size.

    The method is that of LeRobot's server: bilinear, without antialiasing.
    """
    if (
        not isinstance(picture, np.ndarray)
        or picture.dtype != np.uint8
        or picture.ndim != 3
        or picture.shape[2] != 3
        or not picture.size
    ):
        actual = (
            f"{picture.dtype}{list(picture.shape)}"
            if isinstance(picture, np.ndarray)
            else type(picture).__name__
        )
        raise SpecError(
            f"lerobot: expected a picture (height, width, 3) of uint8 from the camera {name}, got "
            f"{actual}"
        )
    if picture.shape == shape:
        return picture
    pixels = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float()
    resized = F.interpolate(pixels, shape[:2], mode="bilinear", align_corners=False)
    return resized[0].permute(1, 2, 0).round().to(torch.uint8).numpy()


class CountErrors:
    """Context manager of one request: it catches an error, counts it and stores its text."""

    def __init__(self, server: PolicyServer) -> None:
        self.server = server
        self.error = ""

    def __enter__(self) -> CountErrors:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = (
            str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}"
        )
        self.server.metrics.refused += 1
        self.server.log(f"serve: {self.error}")
        return True

    async def abort_on_error(self, context: Any) -> None:
        """Abort the call with the stored error, if there is one."""
        if self.error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, escape_ascii(self.error)[:1000])


@asynccontextmanager
async def serve_lerobot(server: PolicyServer, port: int) -> AsyncIterator[int]:
    """Serve LeRobot's clients on this machine while the block runs.

    Yields the port. With port 0 the system chooses one.
    """
    grpc_server = grpc.aio.server(
        options=[("grpc.max_receive_message_length", 4 << 20), ("grpc.so_reuseport", 0)]
    )
    grpc_server.add_generic_rpc_handlers(tuple(LerobotService(server).handlers()))
    try:
        at = grpc_server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError as error:
        raise ServingError(
            f"serve: cannot listen on 127.0.0.1:{port} for LeRobot. Stop the program on that "
            "port, or choose another with --lerobot-port",
            code="RL-E205",
        ) from error
    await grpc_server.start()
    server.log_line(
        f"grpc://127.0.0.1:{at} serves LeRobot's robot client with this policy, on this machine "
        "only"
    )
    try:
        yield at
    finally:
        await grpc_server.stop(0.5)
