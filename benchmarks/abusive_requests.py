"""Requests that once delayed everybody else: large bodies, large answers, long texts, hostile constraints."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.hostile_constraints import HOSTILE_CONSTRAINTS


@dataclass(frozen=True, slots=True)
class AbusiveRequest:
    """A request as bytes; `make_body` takes the model's name and the size in bytes, though not every request uses
    both."""

    name: str
    make_body: Callable[[str, int], bytes]
    path: str = "/v1/completions"


def _repeated(before: str, each: str, after: str) -> Callable[[str, int], bytes]:
    """Return a maker of bodies with as many repetitions as fit."""

    def make(model: str, num_bytes: int) -> bytes:
        head = json.dumps({"model": model})[:-1] + "," + before
        count = max(1, (num_bytes - len(head) - len(after)) // (len(each.encode()) + 1))
        return (head + ",".join([each] * count) + after).encode()

    return make


def _text(character: str, escaped: str = "") -> Callable[[str, int], bytes]:
    """Return a maker of bodies with one long prompt."""
    each = escaped or character

    def make(model: str, num_bytes: int) -> bytes:
        head, tail = json.dumps({"model": model})[:-1] + ',"prompt":"', '"}'
        return (head + each * ((num_bytes - len(head) - len(tail)) // len(each.encode())) + tail).encode()

    return make


def _fields(**fields: object) -> Callable[[str, int], bytes]:
    return lambda model, num_bytes: json.dumps({"model": model, **fields}).encode()


def _numbered(before: str, after: str) -> Callable[[str, int], bytes]:
    """Return a maker of bodies with distinct keys."""

    def make(model: str, num_bytes: int) -> bytes:
        head = json.dumps({"model": model})[:-1] + "," + before
        return (head + ",".join(f'"{key}":1' for key in range(num_bytes // 12)) + after).encode()

    return make


def _nested(model: str, num_bytes: int) -> bytes:
    head = (json.dumps({"model": model})[:-1] + ',"prompt":').encode()
    return head + b"[" * (num_bytes - len(head))


ABUSIVE_REQUESTS = (
    AbusiveRequest("prompts of one token", _repeated('"prompt":[', "[1]", "]}")),
    AbusiveRequest("prompts of one character", _repeated('"prompt":[', '"a"', "]}")),
    AbusiveRequest("token ids", _repeated('"prompt":[', "12345", "]}")),
    AbusiveRequest("fields", _numbered("", "}")),
    AbusiveRequest("logit biases", _numbered('"logit_bias":{', "}}")),
    AbusiveRequest("stop strings", _repeated('"stop":[', '"ab"', "]}")),
    AbusiveRequest("nested arrays", _nested),
    AbusiveRequest("arrays that are not closed", _repeated('"prompt":[[', "1],[1", "")),
    AbusiveRequest("a text", _text("word ")),
    AbusiveRequest("a text without spaces", _text("a")),
    AbusiveRequest("spaces", _text(" ")),
    AbusiveRequest("escaped line ends", _text("\n", escaped="\\n")),
    AbusiveRequest("emoji", _text("🙂")),
    AbusiveRequest("invalid JSON", _repeated('"prompt":[', "1", ",]}")),
    AbusiveRequest("a text to tokenize", _text("word "), "/tokenize"),
    AbusiveRequest("spaces to tokenize", _text(" "), "/tokenize"),
    AbusiveRequest("token ids to detokenize", _repeated('"tokens":[', "123", "]}"), "/detokenize"),
    AbusiveRequest(
        "log probabilities of 16 × 128 choices",
        _fields(prompt=["Once"] * 16, n=128, max_tokens=1000, logprobs=20, ignore_eos=True),
    ),
    AbusiveRequest(
        "as many log probabilities as allowed",
        _fields(prompt=["Once"] * 6, n=8, max_tokens=1000, logprobs=20, ignore_eos=True),
    ),
    AbusiveRequest(
        "log probabilities of long prompts",
        _fields(prompt=["word " * 900] * 48, max_tokens=0, echo=True, logprobs=20),
    ),
    AbusiveRequest(
        "log probabilities of long prompts, streamed",
        _fields(prompt=["word " * 900] * 48, max_tokens=0, echo=True, logprobs=20, stream=True),
    ),
    *(
        AbusiveRequest(name, _fields(prompt="Once", n=2, max_tokens=100, **fields))
        for name, fields in HOSTILE_CONSTRAINTS.items()
    ),
)
