"""The checks of an input file, however it is cut into parts, and what is written of its lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.api.openai import batch_lines
from onward.api.openai.batch_lines import (
    ENDPOINT,
    BatchFileCheck,
    Fault,
    LineIds,
    answered,
    not_computed,
    parse_line,
    unanswered,
)


def line(custom_id: Any = "a", **more: Any) -> bytes:
    body = {"model": "toy", "prompt": "é"}
    given = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body} | more
    return json.dumps(given, ensure_ascii=False).encode()


def check(data: bytes, parts: int = 10**9) -> tuple[BatchFileCheck, list[Any]]:
    checked = BatchFileCheck(ENDPOINT, lambda name: name == "toy")
    found: list[Any] = []
    for begin in range(0, len(data), parts):
        found += checked.feed(data[begin : begin + parts])
    return checked, found + list(checked.end())


def faults(data: bytes) -> list[tuple[str, str | None, int | None]]:
    return [(fault.code, fault.param, fault.line) for fault in check(data)[0].faults]


@pytest.mark.parametrize("parts", [1, 2, 7, 10**9])
def test_a_byte_order_mark_carriage_returns_blank_lines_and_a_missing_newline_are_accepted(parts: int) -> None:
    data = b"\xef\xbb\xbf" + line("a") + b"\r\n\r\n  \n" + line("b")
    checked, found = check(data, parts)
    assert checked.faults == [] and checked.errors == "" and checked.num_requests == 2
    assert [(each.number, json.loads(each.custom_id)) for each in found] == [(1, "a"), (4, "b")]
    assert json.loads(found[0].request) == {"model": "toy", "prompt": "é"}


@given(
    st.lists(st.sampled_from([line("a"), line("b"), b"{", b"", b"null", line("c", method="GET")])), st.integers(1, 60)
)
def test_the_errors_of_a_file_do_not_depend_on_how_it_is_split(lines: list[bytes], parts: int) -> None:
    data = b"\n".join(lines)
    whole, cut = check(data), check(data, parts)
    assert (whole[0].faults, whole[1]) == (cut[0].faults, cut[1])


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"\x00" + line(), "invalid_json_line", None),
        (b"\xff\xfe", "invalid_json_line", None),
        (b"[" * 2000, "invalid_json_line", None),
        (b'"text"', "invalid_json_line", None),
        (line(custom_id=7), "invalid_request", "custom_id"),
        (line(custom_id=""), "invalid_request", "custom_id"),
        (line(body="text"), "invalid_request", "body"),
        (line(method=None), "invalid_request", "method"),
        (line(url="/v1/completions/"), "invalid_url", "url"),
        (line(url="v1/completions"), "invalid_url", "url"),
        (line(body={"prompt": "x"}), "invalid_request", "body.model"),
        (line(body={"model": "other"}), "model_not_found", "body.model"),
    ],
)
def test_a_faulty_line_has_one_error_with_its_code_and_parameter(raw: bytes, code: str, param: str | None) -> None:
    assert faults(raw) == [(code, param, 1)]


def test_a_body_is_kept_byte_for_byte() -> None:
    raw = (
        b'{"custom_id":"a","method":"POST","url":"/v1/completions","body": {"x": 1e400, "n":12345678901234567890123} }'
    )
    parsed = parse_line(raw, (ENDPOINT,))
    assert isinstance(parsed, Fault) or parsed.body == b'{"x": 1e400, "n":12345678901234567890123}'


def test_lines_errors_and_files_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "MAX_LINES", 3)
    monkeypatch.setattr(batch_lines, "MAX_FAULTS", 2)
    monkeypatch.setattr(batch_lines, "MAX_LINE_BYTES", 200)
    assert faults(b"\n".join(line(str(number)) for number in range(3))) == []
    assert faults(b"\n".join(line(str(number)) for number in range(9))) == [("too_many_tasks", None, None)]
    assert [number for *_, number in faults(b"{\n" * 3)] == [1, 2]
    assert faults(line("x" * 300) + b"\n" + line("a")) == [("invalid_request", None, 1)]
    assert faults(b"\n \r\n") == [("empty_file", "input_file_id", None)]


def test_ids_and_seeds_follow_from_batch_and_line() -> None:
    first, again, other = LineIds.of("batch_1", 1), LineIds.of("batch_1", 1), LineIds.of("batch_1", 2)
    assert first == again and len({*first, *other}) == 8
    assert (len(first.record), len(first.request), len(first.completion)) == (42, 36, 34)
    assert 0 <= first.seed < 2**53


def test_lines_have_pythons_separators_and_their_keys_in_order() -> None:
    ids = LineIds.of("batch_1", 1)
    written = answered(ids.record, ids.request, b'"\\u0000\xc3\xa9"', 200, b'{"a":[1,2.5],"b":"x, y:z"}\n', 7)
    value = json.loads(written)
    assert written == (json.dumps(value, ensure_ascii=False) + "\n").encode()
    assert list(value) == ["id", "custom_id", "response", "error"] and value["custom_id"] == "\x00é"
    assert list(value["response"]) == ["status_code", "request_id", "body", "seed"]
    assert "seed" not in json.loads(answered(ids.record, ids.request, b'"a"', 400, b"{}", None))["response"]
    assert json.loads(unanswered(ids.record, b'"a"', {"code": "x"}))["response"] is None
    assert json.loads(not_computed("batch_1", 1, b'"a"', "batch_expired"))["error"]["code"] == "batch_expired"
