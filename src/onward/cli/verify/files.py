"""Reads saved requests and answers, whatever kind of file they are in: nobody says which kind it is."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from onward.api.ids import SEED_HEADER
from onward.api.openai.reply import FoldedChoices
from onward.api.openai.response import Chunk
from onward.cli.verify.saved import Saved
from onward.cli.verify.story import FORMATS, read_story
from onward.errors import SetupError
from onward.service.request_log import LoggedRequest, decoded, read_folder

T = TypeVar("T")
KNOWN = (
    "the input and output of a batch, what a server logged with --log-requests, a story that the playground exported, "
    "and pairs of a request and its answer in JSON"
)
CLIENT_LEFT = 499
"""Status of a request whose client did not wait for its end."""
_HEAD = re.compile(rb"HTTP/[\d.]+ (\d{3})[^\n]*\n((?:[^\r\n]+\r?\n)*)\r?\n")


class _Line(msgspec.Struct):
    """A line of a batch's input."""

    custom_id: str
    body: dict[str, Any]


class _Response(msgspec.Struct):
    status_code: int
    body: dict[str, Any]
    seed: int | None = None


class _Result(msgspec.Struct):
    """A line of a batch's output or errors."""

    custom_id: str | None
    response: _Response | None = None
    error: dict[str, Any] | None = None


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
                yield from map(logged, _read_log(path))
            case "story":
                yield from read_story(path, _object(path))
    yield from _read_batches(of_kind.get("input", []), of_kind.get("output", []))
    yield from _read_pairs(of_kind.get("request", []), of_kind.get("answer", []))


def _kind(path: Path) -> str:
    """Return what a file is. Raises SetupError for one that is none of those that are read."""
    if path.is_dir():
        return "folder"
    try:
        with path.open("rb") as file:
            first = file.readline().removeprefix(BOM_UTF8)
    except OSError as problem:
        raise SetupError(f"{path} cannot be read: {problem.strerror}.") from None
    if first.startswith((b"HTTP/", b"data:")):
        return "answer"
    value = _decoded(first)
    if not isinstance(value, dict):
        value = _object(path)
    return _kind_of(path, value)


def _kind_of(path: Path, value: dict[str, Any]) -> str:
    if "custom_id" in value and ("response" in value or "error" in value):
        return "output"
    if "custom_id" in value:
        return "input"
    if value.get("format") in FORMATS:
        return "story"
    if {"route", "body", "choices"} <= value.keys():
        return "log"
    if isinstance(value.get("choices"), list):
        return "answer"
    if "error" in value:
        raise SetupError(f"{path} is an error instead of an answer: nothing can be computed again.")
    if "prompt" in value or "model" in value:
        return "request"
    raise SetupError(f"{path} is nothing that can be verified. Known are {KNOWN}.")


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file is. Raises SetupError."""
    value = _decoded(path.read_bytes().removeprefix(BOM_UTF8))
    if not isinstance(value, dict):
        raise SetupError(f"{path} is not a JSON object, nor lines of them. Known are {KNOWN}.")
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
    """Return a request of the log. The log has texts and their ends, without an echoed prompt."""
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


def _read_log(path: Path) -> Iterator[LoggedRequest]:
    for line in path.read_bytes().splitlines():
        try:
            yield decoded(line)
        except (msgspec.DecodeError, TypeError):
            continue  # a server that was killed has not finished it


# --- batches ----------------------------------------------------------------------------------------------------


def _read_batches(inputs: Sequence[Path], outputs: Sequence[Path]) -> Iterator[Saved]:
    if not inputs and not outputs:
        return
    if not outputs:
        raise SetupError(f"{inputs[0]} has the requests of a batch: name the file with its answers, too.")
    if not inputs:
        raise SetupError(f"{outputs[0]} has the answers of a batch: name the file with its requests, too.")
    places = _places(inputs)
    for path in outputs:
        for number, line in _lines(path):
            result = _converted(path, number, line, _Result)
            if result.custom_id is None or result.custom_id not in places:
                yield _unknown(str(result.custom_id), "its request is not in these files")
                continue
            source, offset = places.pop(result.custom_id)
            with source.open("rb") as file:
                file.seek(offset)
                request = _converted(source, number, file.readline(), _Line)
            yield _of_batch(request, result)
    for custom_id in places:
        yield _unknown(custom_id, "it has no answer in these files")


def _places(inputs: Sequence[Path]) -> dict[str, tuple[Path, int]]:
    """Return the file of each request, and where in it: a batch has hundreds of megabytes."""
    places: dict[str, tuple[Path, int]] = {}
    for path in inputs:
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    custom_id = _converted(path, number, line, _Line).custom_id
                    if custom_id in places:
                        raise SetupError(f"{path} line {number} has the custom_id {custom_id!r} of another line.")
                    places[custom_id] = path, offset + (len(BOM_UTF8) if line.startswith(BOM_UTF8) else 0)
                offset += len(line)
    return places


def _of_batch(request: _Line, result: _Result) -> Saved:
    saved = Saved(id=request.custom_id, fields=request.body, choices=[])
    if result.response is None:
        code = (result.error or {}).get("code") or "no reason given"
        return replace(saved, problem=f"it was not computed ({code})")
    if result.response.status_code != 200:
        return replace(saved, problem=f"it got an error ({result.response.status_code})")
    return answer_of(replace(saved, seed=result.response.seed), result.response.body)


def _unknown(id: str, problem: str) -> Saved:
    return Saved(id=id, fields={}, choices=[], problem=problem)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.removeprefix(BOM_UTF8)


def _converted(path: Path, number: int, line: bytes, form: type[T]) -> T:
    """Return a line as what it should be. Raises SetupError."""
    try:
        return msgspec.json.decode(line.removeprefix(BOM_UTF8), type=form)
    except (ValueError, RecursionError) as problem:
        what = "a batch's input" if form is _Line else "a batch's output"
        raise SetupError(f"{path} line {number} is not a line of {what}: {problem}.") from None


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
    if data.lstrip().startswith((b"data:", b":", b"id:")):
        return _folded(saved, data.split(b"\n"))
    value = _decoded(data)
    if not isinstance(value, dict):
        raise SetupError(f"{path} is not a JSON object, nor a stream of events.")
    return answer_of(saved, value)


def _folded(saved: Saved, lines: Iterable[bytes]) -> Saved:
    """Return a request with the answer that a stream's events fold to."""
    whole, answer, is_ended = FoldedChoices(), dict[str, Any](), False
    for line in lines:
        data = line.removeprefix(b"data:").strip()
        is_ended = is_ended or data == b"[DONE]"
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        try:
            chunk = msgspec.json.decode(data, type=Chunk)
        except ValueError:
            return replace(saved, problem="its stream ended with an error")
        whole.add(chunk.choices)
        answer |= {name: value for name, value in msgspec.to_builtins(chunk).items() if name != "choices" and value}
    answer["choices"] = [msgspec.to_builtins(choice) for choice in whole.choices()]
    return replace(answer_of(saved, answer), is_whole=is_ended)
