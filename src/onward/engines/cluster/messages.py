"""What passes between a face (the server that holds the clients' connections) and a replica (which holds an engine)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from onward.engine.client import EngineInfo
from onward.engine.events import Event
from onward.engine.job import Job
from onward.engine_load import EngineLoad
from onward.errors import SetupError
from onward.ipc.frames import decoded

PROTOCOL = 4
"""Raised with every change of these messages, of jobs or of events. Faces use replicas with the same number only."""

WHAT_WAS_SENT = "what the other side has sent"
Calls = list[tuple[int, bytes]]
"""The jobs of calls, each encoded. A call is a number that no other call of any face has."""
Frame = list[tuple[int, bytes]]
"""The events of calls, each encoded; empty ones are the end of a call."""

_encoder = msgspec.msgpack.Encoder()
_jobs: msgspec.msgpack.Decoder[list[Job]] = msgspec.msgpack.Decoder(list[Job])
_events: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(list[Event])
_frame: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


@dataclass(frozen=True, slots=True)
class ReplicaRoute:
    """Where a message goes: to this replica and to no other, by name. `face` is the listener that events are for."""

    replica: str
    face: str


class ReplicaInfo(msgspec.Struct, frozen=True):
    """What a replica is, unchanged while it lives. `model`: what it was asked to serve, as in --model; `created`: that
    of /v1/models; `vocabulary`: a digest of the bytes of all tokens; `started`: seconds since the epoch."""

    protocol: int
    model_id: str
    model: str
    created: int
    vocabulary: str
    engine: EngineInfo
    started: float

    def encode(self) -> dict[str, Any]:
        """Return a JSON object: Ray publishes it."""
        encoded: dict[str, Any] = msgspec.to_builtins(self)
        return encoded

    @classmethod
    def decode(cls, encoded: dict[str, Any]) -> ReplicaInfo:
        """Raises SetupError for what another version of Onward has published."""
        if encoded.get("protocol") != PROTOCOL:
            raise SetupError("The cluster runs another version of Onward: install the same one on all machines.")
        try:
            return msgspec.convert(encoded, cls)
        except msgspec.ValidationError as error:
            raise SetupError(f"The cluster's replicas cannot be understood: {error}") from None


class LoadReport(msgspec.Struct, frozen=True):
    """The load of a replica. `number`: of reports so far; the same one arrives with every report of another replica."""

    number: int = 0
    load: EngineLoad = EngineLoad()

    def encode(self) -> dict[str, Any]:
        """Return a JSON object: Ray publishes it."""
        encoded: dict[str, Any] = msgspec.to_builtins(self)
        return encoded

    @classmethod
    def decode(cls, encoded: dict[str, Any]) -> LoadReport:
        """Return an empty load for a replica that has not published any, or one that cannot be understood."""
        try:
            return msgspec.convert(encoded, cls)
        except msgspec.ValidationError:
            return cls()


def encode(value: list[Job] | list[Event] | Frame) -> bytes:
    """Return the jobs of one call, which run on one replica; events of one call; or one item of a replica's stream."""
    return _encoder.encode(value)


def decode_jobs(payload: bytes) -> list[Job]:
    """Raises BrokenMessage."""
    return decoded(_jobs, payload, WHAT_WAS_SENT)


def decode_events(payload: bytes) -> list[Event]:
    """Raises BrokenMessage."""
    return decoded(_events, payload, WHAT_WAS_SENT)


def decode_frame(payload: bytes) -> Frame:
    """Raises BrokenMessage."""
    return decoded(_frame, payload, WHAT_WAS_SENT)
