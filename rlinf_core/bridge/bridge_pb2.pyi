from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class EpisodePart(_message.Message):
    __slots__ = ("station", "episode_id", "file", "data", "sha256")
    STATION_FIELD_NUMBER: _ClassVar[int]
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    station: str
    episode_id: str
    file: str
    data: bytes
    sha256: str
    def __init__(self, station: _Optional[str] = ..., episode_id: _Optional[str] = ..., file: _Optional[str] = ..., data: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ("stored", "duplicate", "error", "refused")
    STORED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    stored: bool
    duplicate: bool
    error: str
    refused: bool
    def __init__(self, stored: _Optional[bool] = ..., duplicate: _Optional[bool] = ..., error: _Optional[str] = ..., refused: _Optional[bool] = ...) -> None: ...

class PolicyRequest(_message.Message):
    __slots__ = ("station", "have_version", "wait_s")
    STATION_FIELD_NUMBER: _ClassVar[int]
    HAVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    station: str
    have_version: int
    wait_s: float
    def __init__(self, station: _Optional[str] = ..., have_version: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class PolicyPart(_message.Message):
    __slots__ = ("version", "data", "sha256")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    version: int
    data: bytes
    sha256: str
    def __init__(self, version: _Optional[int] = ..., data: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class StationReport(_message.Message):
    __slots__ = ("station", "backlog", "policy_version")
    STATION_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    station: str
    backlog: int
    policy_version: int
    def __init__(self, station: _Optional[str] = ..., backlog: _Optional[int] = ..., policy_version: _Optional[int] = ...) -> None: ...

class TrainerReport(_message.Message):
    __slots__ = ("phase", "policy_version", "updates", "episodes", "transitions", "update_ratio", "accepting", "metrics", "message")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PHASE_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_RATIO_FIELD_NUMBER: _ClassVar[int]
    ACCEPTING_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    phase: str
    policy_version: int
    updates: int
    episodes: int
    transitions: int
    update_ratio: float
    accepting: bool
    metrics: _containers.ScalarMap[str, float]
    message: str
    def __init__(self, phase: _Optional[str] = ..., policy_version: _Optional[int] = ..., updates: _Optional[int] = ..., episodes: _Optional[int] = ..., transitions: _Optional[int] = ..., update_ratio: _Optional[float] = ..., accepting: _Optional[bool] = ..., metrics: _Optional[_Mapping[str, float]] = ..., message: _Optional[str] = ...) -> None: ...
