"""Reads saved requests and answers, and finds out by itself what kind of file they are in."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from onward.api.openai.batch_lines import Fault, Parsed, parse_line
from onward.api.openai.reply import FoldedChoices
from onward.api.openai.response import Chunk
from onward.api.seed import SEED_HEADER
from onward.cli.batch.lines import URLS
from onward.cli.verify.saved import Saved
from onward.cli.verify.story import FORMATS, read_story
from onward.errors import SetupError
from onward.service.records import CLIENT_LEFT
from onward.service.request_log import LoggedRequest, read_file, read_folder

KNOWN = (
    "the input and output of a batch, what a server logged with --log-requests, a story that the playground exported, "
    "and pairs of a request and its answer in JSON"
)
EVENTS = (b"data:", b"id:", b"event:", b"retry:", b":")
"""How lines of a stream may begin: those of a resumable stream with an id, and a comment may keep a connection
alive."""
_HEAD = re.compile(rb"HTTP/[\d.]+ (\d{3})[^\n]*\n((?:[^\r\n]+\r?\n)*)\r?\n")


class _Response(msgspec.Struct):
    status_code: int
    body: dict[str, Any]
    seed: int | None = None


class _Result(msgspec.Struct):
    """A line of a batch's output or errors."""

    custom_id: str | None
    response: _Response | None = None
    error: dict[str, Any] | None = None

    @property
    def is_of_invalid_line(self) -> bool:
        """Whether this is how `onward batch run` reports that a line of the input is not a request: its error names the
        line."""
        return self.response is None and isinstance((self.error or {}).get("line"), int)


class _Answer(msgspec.Struct):
    """A completion. A choice is checked when it is used."""

    choices: list[dict[str, Any]]
    id: str = ""
    model: str = ""
    system_fingerprint: str | None = None
    usage: dict[str, Any] | None = None


def read_files(paths: Sequence[Path]) -> Iterator[Saved]:
    """Yield the saved answers of files and folders, in their order, each with its request. Raises SetupError."""
    kinds = {path: _kind(path) for path in paths}
    of_kind = {kind: [path for path in paths if kinds[path] == kind] for kind in set(kinds.values())}
    for path in paths:
        match kinds[path]:
            case "folder":
                yield from map(logged, read_folder(path))
            case "log":
                yield from map(logged, read_file(path))
            case "story":
                yield from read_story(path, _object(path))
    yield from _read_batches(of_kind.get("input", []), of_kind.get("output", []))
    yield from _read_pairs(of_kind.get("request", []), of_kind.get("answer", []))


def _kind(path: Path) -> str:
    """Return the kind of a file. Raises SetupError if it is of none of the kinds that can be read."""
    if path.is_dir():
        return "folder"
    try:
        first = next((line for _, line in _lines(path)), b"")
    except OSError as problem:
        raise SetupError(f"{path} cannot be read: {problem.strerror}.") from None
    if first.startswith((b"HTTP/", *EVENTS)):
        return "answer"
    value = _decoded(first)
    if not isinstance(value, dict):
        value = _decoded(_content(path))
    if not isinstance(value, dict):  # one faulty line of many: the first of the others shows what kind they are
        value = next((each for _, line in _lines(path) if isinstance(each := _decoded(line), dict)), None)
    return _kind_of(path, _checked(path, value))


def _kind_of(path: Path, value: dict[str, Any]) -> str:
    if "custom_id" in value and ("response" in value or "error" in value):
        return "output"
    if "custom_id" in value:
        return "input"
    if value.get("format") in FORMATS:
        return "story"
    if {"route", "body", "choices"} <= value.keys():
        return "log"
    if {"method", "body"} <= value.keys():  # a line without its custom_id
        return "input"
    if isinstance(value.get("choices"), list):
        return "answer"
    if "error" in value:
        raise SetupError(f"{path} contains an error instead of an answer: nothing can be computed again.")
    if "prompt" in value or "model" in value:
        return "request"
    raise SetupError(f"{path} cannot be verified. Files that can: {KNOWN}.")


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file contains. Raises SetupError."""
    return _checked(path, _decoded(_content(path)))


def _content(path: Path) -> bytes:
    return path.read_bytes().removeprefix(BOM_UTF8)


def _checked(path: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SetupError(f"{path} is neither a JSON object nor lines of them. Files that can be verified: {KNOWN}.")
    return value


def _decoded(data: bytes) -> Any:
    """Return the value of JSON, None for anything else."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def answer_of(saved: Saved, answer: dict[str, Any]) -> Saved:
    """Return a saved request with its answer, an object of OpenAI's API."""
    try:
        found = msgspec.convert(answer, _Answer)
        if not all(
            isinstance(choice.get("text"), str) and isinstance(choice.get("index"), int) for choice in found.choices
        ):
            raise ValueError
    except ValueError:
        return replace(saved, problem="the answer is not a completion")
    return replace(
        saved,
        id=saved.id or found.id,
        model=found.model or str(saved.fields.get("model") or ""),
        choices=found.choices,
        usage=found.usage,
        fingerprint=found.system_fingerprint or "",
    )


# --- the log of requests ----------------------------------------------------------------------------------------


def logged(request: LoggedRequest) -> Saved:
    """Return a request of the log. The log has texts and finish reasons, without an echoed prompt."""
    problem = ""
    if not isinstance(request.body, dict):
        problem = "its body was not JSON"
    elif request.status not in (200, CLIENT_LEFT):
        problem = f"it got an error ({request.status})"
    elif not request.choices:
        problem = "its client left before anything was sent"
    fields = request.body if isinstance(request.body, dict) else {}
    return Saved(
        id=request.id,
        model=request.model,
        fields={name: value for name, value in fields.items() if name != "echo"},
        choices=request.choices,
        fingerprint=request.fingerprint,
        seed=request.seed,
        route=request.route,
        is_whole=request.status == 200 and all(choice.get("finish_reason") for choice in request.choices),
        problem=problem,
        at_ms=request.at_ms,
    )


# --- batches ----------------------------------------------------------------------------------------------------


def _read_batches(inputs: Sequence[Path], outputs: Sequence[Path]) -> Iterator[Saved]:
    if not inputs and not outputs:
        return
    if not outputs:
        raise SetupError(f"{inputs[0]} has the requests of a batch: name the file with its answers as well.")
    if not inputs:
        raise SetupError(f"{outputs[0]} has the answers of a batch: name the file with its requests as well.")
    places: dict[str, tuple[Path, int]] = {}
    yield from _find(inputs, places)
    left = dict.fromkeys(places)
    for path in dict.fromkeys(outputs):
        for number, line in _lines(path):
            here, result = f"{path.name} line {number}", _result(line)
            if result is None:
                yield _unknown(here, "it is not a line of a batch's output")
            elif result.is_of_invalid_line:
                continue  # it was yielded with the input
            elif result.custom_id not in places:
                yield _unknown(result.custom_id or here, "its request is not in these files")
            else:
                left.pop(result.custom_id, None)
                yield _of_batch(_request(result.custom_id, *places[result.custom_id]), result)
    for custom_id in left:
        yield _unknown(custom_id, "it has no answer in these files")


def _find(inputs: Sequence[Path], places: dict[str, tuple[Path, int]]) -> Iterator[Saved]:
    """Fill `places` with the file and offset of each request, since a batch may have hundreds of megabytes. Yield the
    lines that are not requests. Raises SetupError for a custom_id in two files: nothing tells which request an answer
    belongs to."""
    for path in dict.fromkeys(inputs):
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                parsed = _parsed(line) if line.strip() else None
                if isinstance(parsed, Fault):
                    id = parsed.custom_id or f"{path.name} line {number}"
                    yield _unknown(id, f"its request is not valid: {parsed.message.removesuffix('.')}")
                elif parsed is not None:
                    known, _ = places.setdefault(parsed.custom_id, (path, offset))
                    if known != path:
                        raise SetupError(
                            f"{path} line {number} has the custom_id {parsed.custom_id!r} of a line of {known}: verify "
                            "one batch at a time."
                        )
                    if places[parsed.custom_id][1] != offset:
                        yield _unknown(parsed.custom_id, f"an earlier line of {path.name} has its custom_id")
                offset += len(line)


def _parsed(line: bytes) -> Parsed | Fault:
    return parse_line(line.removeprefix(BOM_UTF8), URLS, None, needs_url=False)


def _request(custom_id: str, path: Path, offset: int) -> Parsed:
    """Return the request of a custom_id at its place. Raises SetupError if it is no longer there."""
    with path.open("rb") as file:
        file.seek(offset)
        parsed = _parsed(file.readline())
    if isinstance(parsed, Fault) or parsed.custom_id != custom_id:
        raise SetupError(f"{path} has changed while it was read: run the same command again.")
    return parsed


def _result(line: bytes) -> _Result | None:
    """Return a line of output or errors, None for any other line."""
    try:
        return msgspec.json.decode(line, type=_Result)
    except (ValueError, RecursionError):
        return None


def _of_batch(request: Parsed, result: _Result) -> Saved:
    saved = Saved(id=request.custom_id, fields=request.fields, choices=[])
    if result.response is None:
        code = (result.error or {}).get("code") or "no reason given"
        return replace(saved, problem=f"it was not computed ({code})")
    if result.response.status_code != 200:
        return replace(saved, problem=f"it got an error ({result.response.status_code})")
    return answer_of(replace(saved, seed=result.response.seed), result.response.body)


def _unknown(id: str, problem: str) -> Saved:
    return Saved(id=id, fields={}, choices=[], problem=problem)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.removeprefix(BOM_UTF8)


# --- pairs ------------------------------------------------------------------------------------------------------


def _read_pairs(requests: Sequence[Path], answers: Sequence[Path]) -> Iterator[Saved]:
    if len(requests) != len(answers):
        raise SetupError(
            f"There are {len(requests)} files with a request and {len(answers)} with an answer: name both of each pair."
        )
    for request, answer in zip(requests, answers, strict=True):
        saved = Saved(id="", fields=_object(request), choices=[])
        found = _read_answer(answer, replace(saved, model=str(saved.fields.get("model") or "")))
        yield replace(found, id=found.id or answer.name)


def _read_answer(path: Path, saved: Saved) -> Saved:
    """Return a request with the answer in a file: JSON, events, or a response with headers, as curl -i writes it."""
    data = path.read_bytes().removeprefix(BOM_UTF8)
    status = 200
    while (head := _HEAD.match(data)) is not None:
        data, status = data[head.end() :], int(head[1])
        named = (line.partition(b":") for line in head[2].splitlines())
        headers = {name.strip().lower().decode("latin-1"): value.strip() for name, _, value in named}
        seed = headers.get(SEED_HEADER, b"")
        saved = replace(saved, seed=int(seed) if re.fullmatch(rb"\d{1,19}", seed) else None)
    if status != 200:
        return replace(saved, problem=f"it got an error ({status})")
    if data.lstrip().startswith(EVENTS):
        return _folded(saved, data.split(b"\n"))
    value = _decoded(data)
    if not isinstance(value, dict):
        raise SetupError(f"{path} is neither a JSON object nor a stream of events.")
    return answer_of(saved, value)


def _folded(saved: Saved, lines: Sequence[bytes]) -> Saved:
    """Return a request with the answer that a stream's events fold to, as far as they were received."""
    whole, answer, is_ended = FoldedChoices(), dict[str, Any](), False
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            is_ended = True
            continue
        try:
            chunk = msgspec.json.decode(data, type=Chunk)
        except ValueError:
            if line is lines[-1] and _decoded(data) is None:  # it was cut in here
                break
            return replace(saved, problem="its stream ended with an error")
        whole.add(chunk.choices)
        answer |= {name: value for name, value in msgspec.to_builtins(chunk).items() if name != "choices" and value}
    answer["choices"] = [msgspec.to_builtins(choice) for choice in whole.choices()]
    return replace(answer_of(saved, answer), is_whole=is_ended)
