"""Rows of the parity table, and the functions that declare them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .servers import ABSENT, BASE, COMPLETIONS, Answer, Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One behaviour. `check` sends requests to the server `on` and asserts; the strings are shown on the page.

    `golden` are the numbers of the golden cases (behaviour §13) that the row covers. `weak` explains where the evidence
    is weak (§12) and what was chosen. `needs_socket`: it is about bytes that never reach an ASGI application, or about
    a client that needs a socket.
    """

    id: str
    area: str
    says: str
    sent: str
    expected: str
    source: str
    check: Callable[[Server], None]
    on: str = "default"
    golden: tuple[int, ...] = ()
    weak: str = ""
    needs_socket: bool = False

    def problem(self, server: Server) -> str | None:
        """The problem of this row, in short."""
        try:
            self.check(server)
        except Exception as error:
            return f"{self.id}: {type(error).__name__}: {str(error)[:200]}"
        return None


@dataclass(frozen=True, slots=True)
class Expect:
    """A condition on a response, with its description for the page."""

    words: str
    holds: Callable[[Answer], bool]

    def __call__(self, answer: Answer) -> None:
        assert self.holds(answer), f"expected: {self.words}; got {answer.raw.decode(errors='replace')[:2000]}"


class Area:
    """Collects the rows of one part of the table."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = f"behaviour {source}"
        self.rows: list[Row] = []

    def served(self, id: str, says: str, fields: Mapping[str, Any], *expected: Expect, **more: Any) -> None:
        """Declare that a request returns 200 and the expected response."""

        def check(server: Server) -> None:
            answer = server.ask(**fields)
            assert answer.status == 200, answer.raw
            for expect in expected:
                expect(answer)

        words = ", ".join(["200", *(expect.words for expect in expected)])
        self._add(id, says, shown(fields), words, check, **more)

    def same(self, id: str, says: str, fields: Mapping[str, Any], other: Mapping[str, Any], **more: Any) -> None:
        """Declare that two requests return the same choices and the same counts."""

        def check(server: Server) -> None:
            first, second = server.ask(**fields), server.ask(**other)
            assert first.status == second.status == 200, (first.raw, second.raw)
            assert first.choices == second.choices
            for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert first.usage[count] == second.usage[count]

        self._add(id, says, shown(fields), f"the same choices and usage as {shown(other)}", check, **more)

    def refused(
        self,
        id: str,
        says: str,
        fields: Mapping[str, Any],
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        **more: Any,
    ) -> None:
        """Declare that a request is rejected with exactly this message; a trailing … matches any rest."""
        error = error_of(message, param, code)

        def check(server: Server) -> None:
            assert_error(server.ask(**fields), status, error)

        self._add(id, says, shown(fields), error_words(status, error), check, **more)

    def sends(
        self,
        id: str,
        says: str,
        request: tuple[str, str, bytes, Mapping[str, str]],
        *expected: Expect,
        status: int = 200,
        error: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Declare the response to a raw request, or its error."""
        method, path, body, headers = request

        def check(server: Server) -> None:
            answer = server.send(method, path, body, headers)
            if error is not None:
                assert_error(answer, status, error)
            assert answer.status == status, answer.raw
            for expect in expected:
                expect(answer)

        words = error_words(status, error) if error else str(status)
        extra = "".join(f", {name}: {value}" for name, value in headers.items())
        sent = f"{method} {path}{extra} {body.decode(errors='replace')[:200]}".strip()
        self._add(id, says, sent, ", ".join([words, *(expect.words for expect in expected)]), check, **more)

    def law(self, id: str, sent: str, **more: Any) -> Callable[[Callable[[Server], None]], Callable[[Server], None]]:
        """Return a decorator for a function that sends requests and asserts; its docstring is the behaviour."""

        def take(check: Callable[[Server], None]) -> Callable[[Server], None]:
            says = " ".join((check.__doc__ or "").split()).removesuffix(".")
            assert says
            self._add(id, says, sent, "as described", check, **more)
            return check

        return take

    def _add(self, id: str, says: str, sent: str, expected: str, check: Callable[[Server], None], **more: Any) -> None:
        source = more.pop("source", None) or self.source
        more["golden"] = tuple(more.get("golden", ()))
        row = Row(id=id, area=self.name, says=says, sent=sent, expected=expected, source=source, check=check, **more)
        self.rows.append(replace(row))


def shown(fields: Mapping[str, Any]) -> str:
    """Return a request's fields for the page: those that differ from BASE."""
    absent = [name for name, value in fields.items() if value is ABSENT]
    given = {name: value for name, value in fields.items() if value is not ABSENT and name != "path"}
    words = json.dumps(given, ensure_ascii=False)
    words = words if len(words) <= 160 else words[:157] + "…"
    words += f" without {', '.join(absent)}" if absent else ""
    return f"{fields['path']} {words}" if "path" in fields else words


def error_of(
    message: str, param: str | None = None, code: str | None = None, type: str | None = None
) -> dict[str, Any]:
    return {"message": message, "type": type or "invalid_request_error", "param": param, "code": code}


def error_words(status: int, error: Mapping[str, Any]) -> str:
    return f"{status} “{error['message']}” type={error['type']} param={error['param']} code={error['code']}"


def assert_error(answer: Answer, status: int, error: Mapping[str, Any]) -> None:
    """Assert the error's four keys and their values; a `…` at the end of the message matches any rest."""
    assert answer.status == status, answer.raw
    assert answer.headers["content-type"].startswith("application/json")
    assert set(answer.json) == {"error"}
    got = answer.error
    assert set(got) == {"message", "type", "param", "code"}
    words = error["message"]
    if words.endswith("…"):
        assert got["message"].startswith(words[:-1]), got
    else:
        assert got["message"] == words
    for key in ("type", "param", "code"):
        assert got[key] == error[key], got


def post(body: bytes | Mapping[str, Any], path: str = COMPLETIONS, **headers: str) -> tuple[Any, ...]:
    """Return a raw POST request for `Area.sends`."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return "POST", path, raw, {name.replace("_", "-"): value for name, value in headers.items()}


def get(path: str, **headers: str) -> tuple[Any, ...]:
    return "GET", path, b"", {name.replace("_", "-"): value for name, value in headers.items()}


def base(**fields: Any) -> dict[str, Any]:
    """Return a complete body."""
    return {**BASE, **fields}


# --- expectations ----------------------------------------------------------------------------------------------


def finishes(reason: str) -> Expect:
    return Expect(f"finish_reason {reason}", lambda answer: all(c["finish_reason"] == reason for c in answer.choices))


def text_is(text: str) -> Expect:
    return Expect(f"text {text!r}", lambda answer: answer.text == text)


def starts_with(text: str) -> Expect:
    return Expect(f"text starts with {text!r}", lambda answer: all(t.startswith(text) for t in answer.texts))


def counts(**wanted: int) -> Expect:
    """Expect these counts in usage."""
    words = ", ".join(f"{name} {value}" for name, value in wanted.items())
    return Expect(words, lambda answer: all(answer.usage[name] == value for name, value in wanted.items()))


def choices(number: int) -> Expect:
    return Expect(f"{number} choices", lambda answer: [c["index"] for c in answer.choices] == list(range(number)))


def entries(number: int) -> Expect:
    """Expect logprobs arrays of this length."""

    def holds(answer: Answer) -> bool:
        logprobs = answer.logprobs
        lists = [logprobs["tokens"], logprobs["token_logprobs"], logprobs["text_offset"]]
        lists += [logprobs["top_logprobs"]] if logprobs["top_logprobs"] is not None else []
        return all(len(each) == number for each in lists)

    return Expect(f"{number} entries in each logprobs array", holds)


def header(name: str, pattern: str) -> Expect:
    return Expect(f"{name}: {pattern}", lambda answer: re.fullmatch(pattern, answer.headers.get(name, "")) is not None)


def no_header(name: str) -> Expect:
    return Expect(f"no {name} header", lambda answer: name not in answer.headers)


def says(words: str, holds: Callable[[Answer], bool]) -> Expect:
    return Expect(words, holds)
