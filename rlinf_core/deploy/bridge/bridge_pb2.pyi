from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Episode(_message.Message):
    __slots__ = ("id", "files")
    ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    id: str
    files: _containers.RepeatedCompositeFieldContainer[File]
    def __init__(self, id: _Optional[str] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("name", "size", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    sha256: str
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class UploadPart(_message.Message):
    __slots__ = ("episode", "chunk")
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    episode: Episode
    chunk: Chunk
    def __init__(self, episode: _Optional[_Union[Episode, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("file", "offset", "data", "crc32")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    file: int
    offset: int
    data: bytes
    crc32: int
    def __init__(self, file: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32: _Optional[int] = ...) -> None: ...

class EpisodeReply(_message.Message):
    __slots__ = ("stored", "duplicate", "error", "refused", "have")
    STORED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    stored: bool
    duplicate: bool
    error: str
    refused: bool
    have: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stored: _Optional[bool] = ..., duplicate: _Optional[bool] = ..., error: _Optional[str] = ..., refused: _Optional[bool] = ..., have: _Optional[_Iterable[int]] = ...) -> None: ...

class PolicyRequest(_message.Message):
    __slots__ = ("have_version", "wait_s", "have_sha256", "have_file", "file", "may_link", "partial_size", "partial_version")
    HAVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    HAVE_SHA256_FIELD_NUMBER: _ClassVar[int]
    HAVE_FILE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    MAY_LINK_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_VERSION_FIELD_NUMBER: _ClassVar[int]
    have_version: int
    wait_s: float
    have_sha256: str
    have_file: int
    file: str
    may_link: bool
    partial_size: int
    partial_version: int
    def __init__(self, have_version: _Optional[int] = ..., wait_s: _Optional[float] = ..., have_sha256: _Optional[str] = ..., have_file: _Optional[int] = ..., file: _Optional[str] = ..., may_link: _Optional[bool] = ..., partial_size: _Optional[int] = ..., partial_version: _Optional[int] = ...) -> None: ...

class PolicyPart(_message.Message):
    __slots__ = ("version", "data", "sha256", "copy_offset", "copy_size", "needs", "path", "file_state", "first_offset")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    COPY_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COPY_SIZE_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FILE_STATE_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    version: int
    data: bytes
    sha256: str
    copy_offset: int
    copy_size: int
    needs: str
    path: str
    file_state: str
    first_offset: int
    def __init__(self, version: _Optional[int] = ..., data: _Optional[bytes] = ..., sha256: _Optional[str] = ..., copy_offset: _Optional[int] = ..., copy_size: _Optional[int] = ..., needs: _Optional[str] = ..., path: _Optional[str] = ..., file_state: _Optional[str] = ..., first_offset: _Optional[int] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("specs", "limits_hash", "software")
    SPECS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_HASH_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    specs: str
    limits_hash: str
    software: str
    def __init__(self, specs: _Optional[str] = ..., limits_hash: _Optional[str] = ..., software: _Optional[str] = ...) -> None: ...

class RegistrationReply(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class StationReport(_message.Message):
    __slots__ = ("backlog", "policy_version", "set_aside", "spool_full", "software", "playing", "policy_error")
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    SPOOL_FULL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    PLAYING_FIELD_NUMBER: _ClassVar[int]
    POLICY_ERROR_FIELD_NUMBER: _ClassVar[int]
    backlog: int
    policy_version: int
    set_aside: int
    spool_full: float
    software: str
    playing: int
    policy_error: str
    def __init__(self, backlog: _Optional[int] = ..., policy_version: _Optional[int] = ..., set_aside: _Optional[int] = ..., spool_full: _Optional[float] = ..., software: _Optional[str] = ..., playing: _Optional[int] = ..., policy_error: _Optional[str] = ...) -> None: ...

class TrainerReport(_message.Message):
    __slots__ = ("phase", "policy_version", "updates", "episodes", "transitions", "update_ratio", "accepting", "metrics", "message", "registered", "held")
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
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    phase: str
    policy_version: int
    updates: int
    episodes: int
    transitions: int
    update_ratio: float
    accepting: bool
    metrics: _containers.ScalarMap[str, float]
    message: str
    registered: bool
    held: bool
    def __init__(self, phase: _Optional[str] = ..., policy_version: _Optional[int] = ..., updates: _Optional[int] = ..., episodes: _Optional[int] = ..., transitions: _Optional[int] = ..., update_ratio: _Optional[float] = ..., accepting: _Optional[bool] = ..., metrics: _Optional[_Mapping[str, float]] = ..., message: _Optional[str] = ..., registered: _Optional[bool] = ..., held: _Optional[bool] = ...) -> None: ...
