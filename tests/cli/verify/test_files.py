"""Files that hold requests and answers are read; others are refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onward.cli.verify.files import read_files
from onward.cli.verify.saved import Saved
from onward.errors import SetupError

REQUEST: dict[str, Any] = {"model": "toy", "prompt": "a", "seed": 1}
CHOICE: dict[str, Any] = {"text": "b", "index": 0, "logprobs": None, "finish_reason": "stop"}
ANSWER: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "toy",
    "system_fingerprint": "fp_1",
    "choices": [CHOICE],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
LOGGED: dict[str, Any] = {
    "id": "req_1", "at_ms": 1, "key_id": "", "key_name": "", "route": "/generate", "model": "toy",
    "fingerprint": "fp_1", "seed": 5, "status": 200, "body": {"inputs": "a"}, "choices": [CHOICE],
    "prompt_tokens": 1, "completion_tokens": 1,
}  # fmt: skip


def write(path: str, *lines: Any, indent: int | None = None, beginning: str = "") -> Path:
    text = "".join(json.dumps(line, indent=indent) + "\n" for line in lines)
    Path(path).write_text(beginning + text, encoding="utf-8")
    return Path(path)


def result(custom_id: str, **response: Any) -> dict[str, Any]:
    whole = {"status_code": 200, "request_id": "req_1", "body": ANSWER, **response}
    return {"id": "batch_req_1", "custom_id": custom_id, "response": whole, "error": None}


def read(*paths: Path) -> list[Saved]:
    return list(read_files(paths))


def test_a_batch_is_matched_by_custom_id_in_any_order() -> None:
    lines = [{"custom_id": name, "method": "POST", "url": "/v1/completions", "body": REQUEST} for name in "abcde"]
    inputs = write("in.jsonl", *lines, beginning="\ufeff")
    output = write("out.jsonl", result("b", seed=7), result("a", body=ANSWER | {"choices": [{}]}), result("zz"))
    failed = {"id": "x", "custom_id": "d", "response": None, "error": {"code": "batch_expired", "message": "m"}}
    errors = write("errors.jsonl", result("c", status_code=400, body={"error": {}}), failed)
    found = read(output, inputs, errors)
    assert [(each.id, each.problem) for each in found] == [
        ("b", ""),
        ("a", "the answer is not a completion"),
        ("zz", "its request is not in these files"),
        ("c", "it got an error (400)"),
        ("d", "it was not computed (batch_expired)"),
        ("e", "it has no answer in these files"),
    ]
    first = found[0]
    assert (first.fields, first.seed, first.model, first.fingerprint) == (REQUEST, 7, "toy", "fp_1")
    assert first.choices == [CHOICE] and first.usage == ANSWER["usage"] and first.is_whole


def test_a_faulty_line_leaves_the_others_of_a_batch_as_they_are() -> None:
    """Each faulty line is reported once, also one that `onward batch run` recorded as not sent."""
    line = {"custom_id": "a", "body": REQUEST}
    faulty = [{"custom_id": "b", "body": 1}, line | {"body": {}}, {"method": "POST", "body": {}}, {"custom_id": ""}]
    inputs = write("in.jsonl", *faulty[:1], line, *faulty[1:], line | {"custom_id": "c", "url": "/v1/chat"})
    unsent = [
        {"id": "x", "custom_id": id, "response": None, "error": {"code": "c", "message": "m", "line": number}}
        for id, number in (("b", 1), ("a", 3), (None, 4))
    ]
    nobody = {"id": "x", "custom_id": None, "response": None, "error": {"code": "c", "message": "m"}}
    errors = write("errors.jsonl", *unsent, nobody, beginning="{cut\n")
    output = write("out.jsonl", result("a"), result("a"))
    with output.open("a") as file:
        file.write('{"id": "batch_req_')
    no_request = "its request is not valid: "
    for beginning in ("", "no json\n"):
        inputs.write_text(beginning + inputs.read_text(encoding="utf-8"), encoding="utf-8")
        first = len(beginning.splitlines())
        assert [(each.id, each.problem) for each in read(errors, output, inputs)] == [
            *[("in.jsonl line 1", no_request + "This line is not parseable as valid JSON")][:first],
            ("b", no_request + "Invalid type for 'body': expected an object"),
            ("a", "an earlier line of in.jsonl has its custom_id"),
            (f"in.jsonl line {first + 4}", no_request + "Missing required parameter: 'custom_id'"),
            (f"in.jsonl line {first + 5}", no_request + "Missing required parameter: 'body'"),
            ("c", no_request + "The URL provided for this request does not match the batch endpoint"),
            ("errors.jsonl line 1", "it is not a line of a batch's output"),
            ("errors.jsonl line 5", "its request is not in these files"),
            ("a", ""),
            ("a", ""),
            ("out.jsonl line 3", "it is not a line of a batch's output"),
        ]
    assert read(output, inputs)[-2].fields == REQUEST
    assert len(read(output, inputs, inputs, output)) == len(read(output, inputs)), "a file may be named twice"


def test_an_input_that_changes_while_it_is_read_is_reported() -> None:
    lines = [{"custom_id": id, "body": REQUEST} for id in "ab"]
    inputs, output = write("in.jsonl", *lines), write("out.jsonl", result("a"), result("b"))
    reading = read_files((inputs, output))
    assert next(reading).id == "a"
    write("in.jsonl", *reversed(lines))
    with pytest.raises(SetupError, match=r"in\.jsonl has changed"):
        next(reading)


def test_a_line_of_many_says_what_they_are() -> None:
    output = write("out.jsonl", result("a"))
    inputs = write("in.jsonl", {"method": "POST", "url": "/v1/completions", "body": {}}, {"custom_id": "a", "body": {}})
    assert [each.problem for each in read(inputs, output)][1:] == [""]


def test_the_log_of_requests_is_read_as_a_file_and_as_a_folder() -> None:
    others = [
        LOGGED | {"id": "req_2", "status": 499, "choices": [CHOICE | {"finish_reason": None}]},
        LOGGED | {"id": "req_3", "status": 500},
        LOGGED | {"id": "req_4", "body": "{not json"},
        LOGGED | {"id": "req_5", "status": 499, "choices": []},
    ]
    Path("log/no-key").mkdir(parents=True)
    path = write("log/no-key/2026-11-26-1.jsonl", LOGGED, *others)
    with path.open("a") as file:
        file.write('{"id": "req_6"')
    for found in (read(path), read(Path("log"))):
        assert [(each.id, bool(each.problem), each.is_whole) for each in found] == [
            ("req_1", False, True),
            ("req_2", False, False),
            ("req_3", True, False),
            ("req_4", True, True),
            ("req_5", True, False),
        ]
        assert (found[0].route, found[0].seed, found[0].fields) == ("/generate", 5, {"inputs": "a"})


def test_a_pair_is_json_events_or_what_curl_writes() -> None:
    request = write("request.json", REQUEST, indent=2)
    chunks = [
        ANSWER | {"choices": [CHOICE | {"text": part, "finish_reason": end}], "usage": None}
        for part, end in (("a", None), ("b", "stop"))
    ]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    head = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nOnward-Seed: 12\r\nx: y\r\n\r\n"
    files = {
        "answer.json": json.dumps(ANSWER, indent=2),
        "line.json": json.dumps(ANSWER),
        "curl.txt": head + json.dumps(ANSWER, indent=2),
        "events.txt": events + "data: [DONE]\n\n",
        "cut.txt": head + ": a comment\n\n" + events,
        "resumable.txt": events.replace("data: ", "id: 1\ndata: ") + "data: [DONE]\n\n",
        "waited.txt": "\n: keep-alive\n\n" + events,
        "named.txt": "event: completion\n" + events + "data: [DO",
        "inside.txt": events + f"id: 7\ndata: {json.dumps(chunks[0])[:40]}",
    }
    found = {}
    for name, text in files.items():
        Path(name).write_bytes(text.encode())
        (found[name],) = read(Path(name), request)
        assert found[name].fields == REQUEST and found[name].fingerprint == "fp_1" and not found[name].problem
    assert [each.choices[0]["text"] for each in found.values()] == 3 * ["b"] + 6 * ["ab"]
    assert [name for name, each in found.items() if each.seed == 12] == ["curl.txt", "cut.txt"]
    assert [name for name, each in found.items() if not each.is_whole] == [
        *("cut.txt", "waited.txt", "named.txt", "inside.txt")
    ]
    Path("error.txt").write_text('HTTP/1.1 400 Bad Request\r\n\r\n{"error": {}}', encoding="utf-8")
    assert read(request, Path("error.txt"))[0].problem == "it got an error (400)"
    for error in ('{"error": {"message": "m"}}\n\n', '{"error": {"message": "m"}}', "{cut}\n\n"):
        Path("error.txt").write_text(events + "data: " + error, encoding="utf-8")
        assert read(request, Path("error.txt"))[0].problem == "its stream ended with an error"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a": "no json"},
            "a is neither a JSON object nor lines of them. Files that can be verified: the input and output of a batch",
        ),
        ({"a": ""}, "neither a JSON object nor lines of them"),
        ({"a": "[1]"}, "neither a JSON object nor lines of them"),
        ({"a": "\x00\xff"}, "neither a JSON object nor lines of them"),
        ({"a": '{"x": 1}'}, "a cannot be verified"),
        ({"a": '{"error": {"message": "m"}}'}, "a contains an error instead of an answer"),
        ({"a": json.dumps(REQUEST)}, "There are 1 files with a request and 0 with an answer"),
        ({"a": json.dumps(ANSWER)}, "There are 0 files with a request and 1 with an answer"),
        ({"a": json.dumps({"custom_id": "1", "body": {}})}, "name the file with its answers"),
        ({"a": json.dumps(result("1"))}, "name the file with its requests"),
        (
            {
                "a": json.dumps({"custom_id": "1", "body": {}}),
                "b": json.dumps({"custom_id": "1", "body": {"n": 2}}),
                "c": json.dumps(result("1")),
            },
            "b line 1 has the custom_id '1' of a line of a: verify one batch at a time",
        ),
        ({"a": '{"format": "onward-story", "nodes": 1}'}, "a is not a story that the playground exported"),
    ],
)
def test_errors_in_files_are_reported(files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    with pytest.raises(SetupError) as problem:
        read(*map(Path, files))
    assert message in str(problem.value)
