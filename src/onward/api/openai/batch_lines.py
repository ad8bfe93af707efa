"""Lines of OpenAI's batch files: the checks of an input file, and the lines of output and errors (behaviour §18.6)."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from onward.api.body import DEFAULT_LIMITS, BodyLimits
from onward.api.openai.files import BOM
from onward.completions.request import MAX_RANDOM_SEED
from onward.errors import OnwardError
from onward.offload import breathe

METHOD = "POST"
ENDPOINT = "/v1/completions"
MAX_LINES = 50_000
MAX_FAULTS = 1000
MAX_LINE_BYTES = 16_000_000
KEYS = ("custom_id", "method", "url", "body")
NOT_JSON = "This line is not parseable as valid JSON."
CODES = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed because the batch was cancelled.",
    "invalid_api_key": "This request was not executed because the key of its batch was revoked, or has expired.",
    "server_error": "The server ended repeatedly while it was computing this request alone; it is not tried again.",
}
"""The messages for lines that were not computed, by code."""
_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 29


class Fault(NamedTuple):
    """Why a line, or with `line` None the file, cannot be computed. `custom_id` is the line's, if it has one."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    custom_id: str | None = None


class Request(NamedTuple):
    """A line that can be computed: its number from 1, and its custom_id and body as JSON."""

    number: int
    custom_id: bytes
    request: bytes


class Parsed(NamedTuple):
    """A line whose shape is right. `body` is JSON, `fields` are what it has."""

    custom_id: str
    body: bytes
    fields: dict[str, Any]


def parse_line(
    raw: bytes, endpoints: Collection[str], limits: BodyLimits | None = DEFAULT_LIMITS, *, needs_url: bool = True
) -> Parsed | Fault:
    """Return one line of a batch file, or the first thing that is wrong with it. Without `needs_url`, method and URL
    may be left out. `limits` None: of any size."""
    try:
        if limits is not None:
            limits.check(raw)
        parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        given = {name: msgspec.json.decode(parts[name]) for name in KEYS if name in parts}
    except (ValueError, RecursionError, OnwardError):
        return Fault("invalid_json_line", NOT_JSON)
    fault = _fault_of_keys(given, endpoints, KEYS if needs_url else ("custom_id", "body"))
    if fault is None:
        return Parsed(given["custom_id"], bytes(parts["body"]), given["body"])
    custom_id = given.get("custom_id")
    return fault._replace(custom_id=custom_id if isinstance(custom_id, str) and custom_id else None)


def _fault_of_keys(given: dict[str, Any], endpoints: Collection[str], needed: Collection[str]) -> Fault | None:
    for name in needed:
        if name not in given:
            return Fault("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    for name, value in given.items():
        if not isinstance(value, dict if name == "body" else str):
            kind = "an object" if name == "body" else "a string"
            return Fault("invalid_request", f"Invalid type for '{name}': expected {kind}.", name)
    if not given["custom_id"]:
        return Fault("invalid_request", "The custom_id must not be empty.", "custom_id")
    if given.get("method", METHOD) != METHOD:
        return Fault("invalid_method", f"The method must be {METHOD}.", "method")
    if "url" in given and given["url"] not in endpoints:
        message = "The URL provided for this request does not match the batch endpoint."
        return Fault("invalid_url", message, "url")
    return None


@dataclass(slots=True)
class BatchFileCheck:
    """Checks an input file as it is read. `knows` says whether there is a model of a name. Any thread, one
    at a time."""

    endpoint: str
    knows: Callable[[str], bool]
    limits: BodyLimits = DEFAULT_LIMITS
    faults: list[Fault] = field(default_factory=list)
    model: str = ""
    """The model of all lines."""
    num_requests: int = 0
    _number: int = 0
    _rest: bytearray = field(default_factory=bytearray)
    """The beginning of a line whose end has not been read."""
    _is_long: bool = False
    _ids: set[bytes] = field(default_factory=set)

    @property
    def errors(self) -> str:
        """The `errors` of the batch, as JSON; "" if there are none."""
        return faults_json(self.faults) if self.faults else ""

    def feed(self, data: bytes) -> list[Request]:
        """Return the requests of the lines that end in these bytes."""
        *ended, rest = data.split(b"\n")
        found = []
        for line in ended:
            whole, self._rest = self._rest + line, bytearray()
            found += self._line(bytes(whole))
            breathe()
        self._rest += rest
        if len(self._rest) > MAX_LINE_BYTES:
            self._is_long, self._rest = True, bytearray()
        return found

    def end(self) -> list[Request]:
        """Return the last request, if the file does not end with a newline."""
        found = self._line(bytes(self._rest)) if self._rest or self._is_long else []
        if not self.num_requests and not self.faults:
            self.faults.append(Fault("empty_file", "The input file has no requests.", "input_file_id"))
        return found

    def _line(self, raw: bytes) -> list[Request]:
        self._number += 1
        if self._number == 1:
            raw = raw.removeprefix(BOM)
        if self._is_long or len(raw) > MAX_LINE_BYTES:
            self._is_long = False
            self._add(Fault("invalid_request", f"This line is longer than {MAX_LINE_BYTES // 1_000_000} MB."))
            return []
        if not raw.strip():
            return []
        self.num_requests += 1
        if self.num_requests > MAX_LINES:
            if self.num_requests == MAX_LINES + 1:
                message = f"The input file has more than {MAX_LINES} requests: make several batches of it."
                self.faults.append(Fault("too_many_tasks", message))
            return []
        parsed = parse_line(raw, (self.endpoint,), self.limits)
        if isinstance(parsed, Parsed):
            fault = self._fault_of(parsed)
            if fault is None:
                return [Request(self._number, msgspec.json.encode(parsed.custom_id), parsed.body)]
            parsed = fault
        self._add(parsed)
        return []

    def _add(self, fault: Fault) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault._replace(line=self._number))

    def _fault_of(self, line: Parsed) -> Fault | None:
        """Return what is wrong with a line, given the lines before it."""
        digest = hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()
        if digest in self._ids:
            return Fault(
                "duplicate_custom_id",
                f"The custom_id '{line.custom_id[:128]}' for this request is a duplicate of another request. The "
                "custom_id parameter must be unique for each request in a batch.",
                "custom_id",
            )
        self._ids.add(digest)
        model = line.fields.get("model")
        if not isinstance(model, str) or not model:
            return Fault("invalid_request", "Model parameter is required.", "body.model")
        self.model = self.model or model
        if model != self.model:
            return Fault(
                "mismatched_model",
                f"The model '{model[:128]}' for this request does not match the rest of the batch. Each batch must "
                "contain requests for a single model.",
                "body.model",
            )
        if not self.knows(model):
            message = f"The provided model '{model[:128]}' is not supported by the Batch API."
            return Fault("model_not_found", message, "body.model")
        if line.fields.get("stream"):
            message = "Completions: Streaming is not supported in the Batch API."
            return Fault("streaming_unsupported", message, "body.stream")
        return None


def faults_json(faults: list[Fault]) -> str:
    """Return the `errors` of a batch (behaviour §18.4)."""
    data = [{"code": each.code, "message": each.message, "param": each.param, "line": each.line} for each in faults]
    return msgspec.json.encode({"object": "list", "data": data}).decode()


def missing_file(file_id: str, organization: str) -> Fault:
    message = f"Cannot find file {file_id[:128]}, or organization {organization} does not have access to it."
    return Fault("invalid_request", message, "file_id")


def queue_full(model: str, organization: str, most: int) -> Fault:
    """Clients wait and submit again on this code (behaviour §18.4)."""
    message = (
        f"Enqueued token limit reached for {model} in organization {organization}. Limit: {most} batches of a key that "
        "have not ended. Please try again once some in_progress batches have been completed."
    )
    return Fault("token_limit_exceeded", message)


class LineIds(NamedTuple):
    """What is drawn for a line: it depends on the batch's id and the line's number alone, so that a line which is
    computed again has the same."""

    record: str
    request: str
    completion: str
    seed: int

    @classmethod
    def of(cls, batch_id: str, number: int) -> LineIds:
        digest = hashlib.blake2b(f"{batch_id} {number}".encode()).digest()
        rest, characters = int.from_bytes(digest[32:56], "big"), []
        for _ in range(_ID_LENGTH):
            rest, digit = divmod(rest, len(_ALPHABET))
            characters.append(_ALPHABET[digit])
        seed = int.from_bytes(digest[56:64], "big") >> (64 - MAX_RANDOM_SEED.bit_length())
        return cls(f"batch_req_{digest[:16].hex()}", f"req_{digest[16:32].hex()}", "cmpl-" + "".join(characters), seed)


def answered(record: str, request: str, custom_id: bytes, status: int, body: bytes, seed: int | None) -> bytes:
    """Return the line of a request that got an answer or an error over HTTP. `record` and `request` are the ids of the
    line and of the request. `custom_id` and `body` are JSON; `seed` is the one that its sampling used, by which anyone
    can compute it again."""
    response = b'{"status_code":%d,"request_id":%b,"body":%b' % (status, msgspec.json.encode(request), body.strip())
    response += b"}" if seed is None else b',"seed":%d}' % seed
    return _line(record, custom_id, response, b"null")


def unanswered(record: str, custom_id: bytes, error: Mapping[str, object]) -> bytes:
    """Return the line of a request that was not computed."""
    return _line(record, custom_id, b"null", msgspec.json.encode(error))


def not_computed(batch_id: str, number: int, custom_id: bytes, code: str) -> bytes:
    """Return the line of a request that was not computed, for a reason of CODES."""
    return unanswered(LineIds.of(batch_id, number).record, custom_id, {"code": code, "message": CODES[code]})


def _line(record: str, custom_id: bytes, response: bytes, error: bytes) -> bytes:
    """Return a line with Python's separators, as OpenAI writes them (behaviour §18.8)."""
    line = b'{"id":"%b","custom_id":%b,"response":%b,"error":%b}' % (record.encode(), custom_id, response, error)
    return msgspec.json.format(line, indent=0) + b"\n"
