"""Files and batches: uploads, validation, results, and the messages of refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import openai

from tests.waiting import PATIENCE_SECONDS

from .servers import COMPLETIONS, KEY_PREFIX, Answer, Server
from .table import Area, assert_error, error_of

FILES = Area("Files", "§18")
BATCHES = Area("Batches", "§18")
BOUNDARY = "parity-b0undary"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
KEY = "batches"
FINAL = ("completed", "failed", "expired", "cancelled")


def key(name: str = KEY) -> dict[str, str]:
    return {"authorization": f"Bearer sk-parity-{name}"}


def form(*parts: tuple[str, str | bytes, str | None]) -> bytes:
    """Return a multipart body. Parts are name, value and file name."""
    body = b""
    for name, value, filename in parts:
        head = f'Content-Disposition: form-data; name="{name}"'
        if filename is not None:
            head += f'; filename="{filename}"\r\nContent-Type: application/octet-stream'
        raw = value if isinstance(value, bytes) else value.encode()
        body += f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + raw + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def send_form(server: Server, body: bytes, name: str = KEY) -> Answer:
    return server.send("POST", "/v1/files", body, key(name) | FORM)


def upload(server: Server, data: bytes, filename: str = "in.jsonl", name: str = KEY, **fields: str) -> Answer:
    """Upload a file as Python's SDK does: the purpose comes first."""
    given = [(field, value, None) for field, value in {"purpose": "batch", **fields}.items()]
    return send_form(server, form(*given, ("file", data, filename)), name)


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    fields = {"model": "toy", "prompt": "Say", "max_tokens": 3, **body}
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": fields}


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def ask(server: Server, method: str, path: str, body: Any = None, name: str = KEY) -> Answer:
    return server.send(method, path, b"" if body is None else json.dumps(body).encode(), key(name))


def create(server: Server, file_id: str, name: str = KEY, **more: Any) -> Answer:
    fields = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h", **more}
    return ask(server, "POST", "/v1/batches", {field: value for field, value in fields.items() if value != ""}, name)


def submit(server: Server, data: bytes, name: str = KEY, **more: Any) -> dict[str, Any]:
    uploaded = upload(server, data, name=name)
    assert uploaded.status == 200, uploaded.raw
    created = create(server, uploaded.json["id"], name, **more)
    assert created.status == 200, created.raw
    return dict(created.json)


def wait(
    server: Server, batch: dict[str, Any], until: Callable[[dict[str, Any]], bool] | None = None, name: str = KEY
) -> dict[str, Any]:
    """Return a batch once it is final, or as `until` says."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = ask(server, "GET", f"/v1/batches/{batch['id']}", name=name).json
        if until(found) if until is not None else found["status"] in FINAL:
            return dict(found)
        time.sleep(0.02)
    raise AssertionError(f"the batch did not end: {found}")


def run(server: Server, data: bytes, name: str = KEY) -> dict[str, Any]:
    return wait(server, submit(server, data, name), name=name)


def content(server: Server, file_id: str, name: str = KEY) -> list[dict[str, Any]]:
    answer = ask(server, "GET", f"/v1/files/{file_id}/content", name=name)
    assert answer.status == 200 and answer.raw.endswith(b"\n")
    assert answer.headers["content-type"] == "application/octet-stream"
    return [json.loads(each) for each in answer.raw.decode().splitlines()]


def ids_of(make: Callable[[], Answer], num: int) -> list[str]:
    """Return the ids of what is made, each in a millisecond of its own: lists have those of one in any order."""
    found = []
    for _ in range(num):
        found.append(make().json["id"])
        time.sleep(0.002)
    return found


def errors(server: Server, *lines: bytes) -> list[dict[str, Any]]:
    """Return the errors of a batch that failed, of which nothing ran."""
    batch = run(server, b"\n".join(lines))
    assert (batch["status"], batch["failed_at"] is not None) == ("failed", True)
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert batch["output_file_id"] is batch["error_file_id"] is None
    assert batch["errors"]["object"] == "list"
    return list(batch["errors"]["data"])


def faults(found: Sequence[dict[str, Any]]) -> list[tuple[str, str | None, int | None]]:
    return [(each["code"], each["param"], each["line"]) for each in found]


GOOD = jsonl(line("1"), line("2", prompt="A"), line("3", prompt=[65, 66]))


@FILES.law("files.create", "a form of Python's SDK", on="team")
def uploaded(server: Server) -> None:
    """A file is processed at once, and lives for 30 days."""
    answer = upload(server, GOOD)
    file = answer.json
    assert answer.status == 200
    assert list(file) == [
        *("id", "object", "bytes", "created_at", "filename", "purpose", "status", "expires_at", "status_details")
    ]
    assert (file["object"], file["bytes"], file["filename"]) == ("file", len(GOOD), "in.jsonl")
    assert (file["purpose"], file["status"], file["status_details"]) == ("batch", "processed", None)
    assert file["expires_at"] - file["created_at"] == 2_592_000
    assert file["id"].startswith("file-") and len(file["id"]) == 27
    assert ask(server, "GET", f"/v1/files/{file['id']}").json == file
    got = ask(server, "GET", f"/v1/files/{file['id']}/content")
    assert got.raw == GOOD and got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-length"] == str(len(GOOD))
    assert got.headers["content-disposition"] == 'attachment; filename="in.jsonl"'


@FILES.law("files.expires_after", "expires_after[seconds] 3600, 60 and 2592001", on="team")
def expiring(server: Server) -> None:
    """expires_after sets the life of a file: between an hour and 30 days."""
    after = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = upload(server, GOOD, **after).json
    assert file["expires_at"] - file["created_at"] == 3600
    for seconds, code in (("60", "integer_below_min_value"), ("2592001", "integer_above_max_value")):
        refused = upload(server, GOOD, **after | {"expires_after[seconds]": seconds})
        assert (refused.status, refused.error["code"]) == (400, code)
    assert upload(server, GOOD, **after | {"expires_after[seconds]": "soon"}).error["code"] == "invalid_type"


@FILES.law(
    "files.node",
    "a form of Node's SDK: the file comes first; the same without a length, in chunks",
    on="team",
    needs_socket=True,
)
def file_first(server: Server) -> None:
    """The parts of a form may have any order, and others are ignored."""
    body = form(("file", GOOD, "in.jsonl"), ("purpose", "batch", None), ("other", "x", None))
    chunked = (body[start : start + 100] for start in range(0, len(body), 100))
    whole, chunks = send_form(server, body), server.http.post("/v1/files", content=chunked, headers=key() | FORM)
    assert (whole.status, chunks.status_code) == (200, 200)
    for file in (whole.json, chunks.json()):
        changes = {"id": file["id"], "created_at": 0, "expires_at": 0}
        assert file | changes == upload(server, GOOD).json | changes


@FILES.law("files.name", "file names é x.jsonl, ../../etc/passwd and C:\\a.jsonl", on="team")
def names(server: Server) -> None:
    """The file's name is UTF-8, without folders."""
    for sent, known in (("é x.jsonl", "é x.jsonl"), ("../../etc/passwd", "passwd"), ("C:\\a.jsonl", "a.jsonl")):
        answer = upload(server, GOOD, sent)
        assert (answer.status, answer.json["filename"]) == (200, known)
    got = ask(server, "GET", f"/v1/files/{upload(server, GOOD, 'é x.jsonl').json['id']}/content")
    assert got.headers["content-disposition"].endswith("filename*=UTF-8''%C3%A9%20x.jsonl")


@FILES.law("files.strict", "the file name notes.txt", on="strict")
def jsonl_only(server: Server) -> None:
    """With the strict profile, the name of a batch's file must end in .jsonl."""
    assert_error(upload(server, GOOD, "notes.txt"), 400, error_of("Invalid file format for Batch API. Must be .jsonl"))
    assert upload(server, GOOD).status == 200


@FILES.law("files.format", "no byte, and a first line that is not JSON", on="team")
def not_jsonl(server: Server) -> None:
    """An empty file, and one whose first line is not a JSON object, are refused when they are uploaded."""
    for data in (b"", b"\n \r\n", b"not json\n", b"[1]\n", b"\x00{}\n"):
        assert_error(upload(server, data), 400, error_of("Invalid file format for Batch API. Must be .jsonl"))
    for data in (b"\xef\xbb\xbf{}\nnot json", b"\r\n{}\r\n", b"{}"):
        assert upload(server, data).status == 200, data


@FILES.law("files.missing", "forms without purpose, with another one, without file, and JSON", on="team")
def missing_parts(server: Server) -> None:
    """A form without a purpose or a file, or with a purpose that this server does not have, is refused."""
    words = "Missing required parameter: '{}'."
    lacking = send_form(server, form(("file", GOOD, "in.jsonl")))
    assert_error(lacking, 400, error_of(words.format("purpose"), "purpose", "missing_required_parameter"))
    other = upload(server, GOOD, purpose="fine-tune")
    message = "Invalid value: 'fine-tune'. Supported values are: 'batch'."
    assert_error(other, 400, error_of(message, "purpose", "invalid_value"))
    empty = send_form(server, form(("purpose", "batch", None)))
    assert_error(empty, 400, error_of(words.format("file"), "file", "missing_required_parameter"))
    plain = ask(server, "POST", "/v1/files", {"purpose": "batch"})
    assert (plain.status, plain.error["code"]) == (400, "unsupported_content_type")


@FILES.law("files.list", "five files, listed by two", on="team")
def listed(server: Server) -> None:
    """Lists have the newest first, and continue after an id."""
    name = "lister"
    ids = ids_of(lambda: upload(server, GOOD, name=name), 5)
    whole = ask(server, "GET", "/v1/files", name=name).json
    assert [each["id"] for each in whole["data"]] == ids[::-1] and whole["has_more"] is False
    assert (whole["object"], whole["first_id"], whole["last_id"]) == ("list", ids[-1], ids[0])
    page = ask(server, "GET", f"/v1/files?limit=2&order=asc&after={ids[1]}&purpose=batch", name=name).json
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids[2:4], True)
    none = ask(server, "GET", "/v1/files?purpose=batch_output", name=name).json
    assert none == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    refused = ask(server, "GET", "/v1/files?limit=0", name=name)
    assert (refused.status, refused.error["code"]) == (400, "integer_below_min_value")


@FILES.law("files.unknown", "unknown ids, another key's file, and one that was deleted", on="team")
def unknown_files(server: Server) -> None:
    """A file that does not exist, or is another key's, is a 404 in the same words."""
    theirs, gone = upload(server, GOOD, name="another").json["id"], upload(server, GOOD).json["id"]
    assert ask(server, "DELETE", f"/v1/files/{gone}").json == {"id": gone, "object": "file", "deleted": True}
    for file_id in ("file-none", theirs, gone):
        error = error_of(f"No such File object: {file_id}", "id")
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
            assert_error(ask(server, method, f"/v1/files/{file_id}{path}"), 404, error)


@FILES.law("files.no_database", "files and batches of a server without a database")
def no_database(server: Server) -> None:
    """Without a database there are no files and batches, and the error names the flag."""
    for path in ("/v1/files", "/v1/batches"):
        refused = server.send("GET", path)
        assert refused.status == 404 and "--data-dir" in refused.error["message"]


@BATCHES.law("batches.completed", "three good lines", on="team")
def completed(server: Server) -> None:
    """A batch is validated, worked on, and completed; without failed lines it has no error file."""
    batch = submit(server, GOOD, metadata={"a": "b"})
    assert list(batch) == [
        *("id", "object", "endpoint", "model", "errors", "input_file_id", "completion_window", "status"),
        *("output_file_id", "error_file_id", "created_at", "in_progress_at", "expires_at", "finalizing_at"),
        *("completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at", "request_counts", "usage"),
        "metadata",
    ]
    assert (batch["status"], batch["object"], batch["model"]) == ("validating", "batch", None)
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert batch["expires_at"] == batch["created_at"] + 86_400 and batch["in_progress_at"] is None
    assert batch["id"] == f"batch_{batch['created_at']:08x}{batch['id'][14:]}" and len(batch["id"]) == 38
    assert batch["usage"]["total_tokens"] == 0
    done = wait(server, batch)
    assert (done["status"], done["error_file_id"], done["model"]) == ("completed", None, "toy")
    assert done["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert done["metadata"] == {"a": "b"} and done["errors"] is None
    assert done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"]
    file = ask(server, "GET", f"/v1/files/{done['output_file_id']}").json
    assert (file["purpose"], file["expires_at"]) == ("batch_output", None)
    assert file["filename"] == f"{batch['id']}_output.jsonl"


@BATCHES.law("batches.output", "the output of three good lines", on="team")
def output(server: Server) -> None:
    """A line of the output has the whole answer as an object, in the order of the input."""
    done = run(server, GOOD)
    found = content(server, done["output_file_id"])
    assert [each["custom_id"] for each in found] == ["1", "2", "3"]
    for each in found:
        assert list(each) == ["id", "custom_id", "response", "error"] and each["error"] is None
        assert each["id"].startswith("batch_req_") and each["response"]["status_code"] == 200
        assert each["response"]["body"]["object"] == "text_completion"
        assert each["response"]["body"]["created"] == done["created_at"]
    total = sum(each["response"]["body"]["usage"]["total_tokens"] for each in found)
    assert done["usage"]["total_tokens"] == total
    answer = ask(
        server,
        "POST",
        COMPLETIONS,
        {"model": "toy", "prompt": "A", "max_tokens": 3, "seed": found[1]["response"]["seed"]},
    )
    assert answer.json["choices"] == found[1]["response"]["body"]["choices"]


@BATCHES.law("batches.failed_line", "a good line and one with temperature 9", on="team")
def failed_line(server: Server) -> None:
    """A request that gets an error is in the error file, with the error as its response."""
    done = run(server, jsonl(line("good"), line("bad", temperature=9)))
    assert (done["status"], done["request_counts"]) == ("completed", {"total": 2, "completed": 1, "failed": 1})
    (bad,) = content(server, done["error_file_id"])
    assert (bad["custom_id"], bad["error"], bad["response"]["status_code"]) == ("bad", None, 400)
    assert bad["response"]["body"]["error"]["param"] == "temperature"


@BATCHES.law("batches.all_failed", "only lines with temperature 9", on="team")
def all_failed(server: Server) -> None:
    """A batch of which all lines get errors is completed, and has no output file."""
    done = run(server, jsonl(line("1", temperature=9), line("2", temperature=9)))
    assert (done["status"], done["output_file_id"]) == ("completed", None)
    assert len(content(server, done["error_file_id"])) == done["request_counts"]["failed"] == 2


@BATCHES.law("batches.not_json", "a second line that is not JSON", on="team")
def second_line_not_json(server: Server) -> None:
    """A line that is not JSON fails the batch."""
    found = errors(server, json.dumps(line("1")).encode(), b"not json")
    assert found == [
        {
            "code": "invalid_json_line",
            "message": "This line is not parseable as valid JSON.",
            "param": None,
            "line": 2,
        }
    ]


@BATCHES.law("batches.missing_keys", "lines without custom_id, method, url and body", on="team")
def missing_keys(server: Server) -> None:
    """All errors of a file are reported, in the order of its lines."""
    whole = line("x")
    lacking = [{k: v for k, v in whole.items() if k != name} for name in whole]
    found = errors(server, *(json.dumps(each).encode() for each in lacking))
    assert faults(found) == [("missing_required_parameter", name, number) for number, name in enumerate(whole, 1)]
    assert found[0]["message"] == "Missing required parameter: 'custom_id'."


@BATCHES.law("batches.url", "the url /v1/embeddings, the method GET", on="team")
def wrong_url(server: Server) -> None:
    """Lines must have the batch's endpoint and the method POST."""
    found = errors(
        server,
        json.dumps(line("1") | {"url": "/v1/embeddings"}).encode(),
        b"",
        json.dumps(line("2") | {"method": "GET"}).encode(),
    )
    assert faults(found) == [("invalid_url", "url", 1), ("invalid_method", "method", 3)]
    assert found[0]["message"] == "The URL provided for this request does not match the batch endpoint."


@BATCHES.law("batches.duplicates", "one custom_id twice, and a second model", on="team")
def duplicates(server: Server) -> None:
    """A custom_id is unique in a file, and all lines have one model."""
    found = errors(server, *jsonl(line("x"), line("x"), line("y", model="gpt-x")).splitlines())
    assert faults(found) == [("duplicate_custom_id", "custom_id", 2), ("mismatched_model", "body.model", 3)]
    assert found[0]["message"].startswith("The custom_id 'x' for this request is a duplicate of another request. ")
    assert found[1]["message"].endswith("Each batch must contain requests for a single model.")


@BATCHES.law("batches.stream", "stream in line 2", on="team")
def streaming(server: Server) -> None:
    """A batch cannot stream."""
    found = errors(server, *jsonl(line("1"), line("2", stream=True)).splitlines())
    assert faults(found) == [("streaming_unsupported", "body.stream", 2)]
    assert found[0]["message"] == "Completions: Streaming is not supported in the Batch API."


@BATCHES.law("batches.model", "an unknown model, and none", on="team")
def unknown_model(server: Server) -> None:
    """The model of a batch must be known when it is validated."""
    found = errors(server, *jsonl(line("1", model="nope")).splitlines())
    assert faults(found) == [("model_not_found", "body.model", 1)]
    assert found[0]["message"] == "The provided model 'nope' is not supported by the Batch API."
    found = errors(server, *jsonl(line("1", model=None)).splitlines())
    assert faults(found) == [("invalid_request", "body.model", 1)]


@BATCHES.law("batches.create", "wrong endpoint, window, no file id", on="team")
def bad_parameters(server: Server) -> None:
    """Wrong parameters of a batch are refused at once."""
    endpoint = create(server, "file-x", endpoint="/v1/nope")
    message = "Invalid value: '/v1/nope'. Supported values are: '/v1/completions'."
    assert_error(endpoint, 400, error_of(message, "endpoint", "invalid_value"))
    window = create(server, "file-x", completion_window="48h")
    assert (window.status, window.error["param"]) == (400, "completion_window")
    assert "completion_window" in window.error["message"]
    lacking = create(server, "")
    message = "Missing required parameter: 'input_file_id'."
    assert_error(lacking, 400, error_of(message, "input_file_id", "missing_required_parameter"))


@BATCHES.law("batches.metadata", "an array, 17 pairs, a value of 513 characters", on="team")
def bad_metadata(server: Server) -> None:
    """Metadata are at most 16 pairs of strings."""
    message = "Invalid type for 'metadata.tags': expected a string, but got an array instead."
    error = error_of(message, "metadata.tags", "invalid_type")
    assert_error(create(server, "file-x", metadata={"tags": ["a"]}), 400, error)
    many = create(server, "file-x", metadata={str(number): "" for number in range(17)})
    assert (many.status, many.error["param"]) == (400, "metadata")
    long = create(server, "file-x", metadata={"a": "x" * 513})
    assert (long.status, long.error["param"], long.error["code"]) == (400, "metadata.a", "string_above_max_length")


@BATCHES.law("batches.unknown_file", "an unknown file, another key's, and an output file", on="team")
def unknown_file(server: Server) -> None:
    """An unknown file fails the batch soon after it was made; a file of another purpose is refused."""
    theirs = upload(server, GOOD, name="another").json["id"]
    for file_id in ("file-none", theirs):
        created = create(server, file_id)
        assert (created.status, created.json["status"]) == (200, "validating")
        batch = wait(server, created.json)
        words = f"Cannot find file {file_id}, or organization org-onward does not have access to it."
        (error,) = batch["errors"]["data"]
        assert error == {"code": "invalid_request", "message": words, "param": "file_id", "line": None}
    refused = create(server, run(server, GOOD)["output_file_id"])
    assert (refused.status, refused.error["param"], refused.error["code"]) == (400, "input_file_id", "invalid_value")


WAITING = jsonl(*(line(str(number), logit_bias={"97": 100}, max_tokens=20) for number in range(10)))
"""Of these lines, a key with 120 tokens per day has some computed; the others wait for the next day."""


def waiting(server: Server, name: str) -> dict[str, Any]:
    """Return a batch that has finished some lines, and does not finish the others."""
    batch = submit(server, WAITING, name)
    found = wait(server, batch, lambda found: found["request_counts"]["completed"] > 1, name=name)
    assert (found["status"], found["request_counts"]["total"]) == ("in_progress", 10)
    assert found["in_progress_at"] is not None and found["output_file_id"] is found["error_file_id"] is None
    return found


def check_unrun(server: Server, batch: dict[str, Any], code: str, name: str) -> None:
    """Assert that a batch which ended early has every line once."""
    counts, out = batch["request_counts"], content(server, batch["output_file_id"], name)
    rest = content(server, batch["error_file_id"], name)
    assert (counts["total"], counts["failed"], counts["completed"]) == (10, 0, len(out))
    assert sorted(int(each["custom_id"]) for each in out + rest) == list(range(10))
    assert {each["error"]["code"] for each in rest} == {code} and all(each["response"] is None for each in rest)


@BATCHES.law("batches.cancel", "cancelled while it runs, with an empty body", on="team")
def cancelled(server: Server) -> None:
    """A cancelled batch keeps what is finished; the other lines are in the error file, and not counted as failed."""
    batch = waiting(server, "cancelling")
    headers = key("cancelling") | {"content-type": "application/json"}
    answer = server.send("POST", f"/v1/batches/{batch['id']}/cancel", b"", headers)
    assert (answer.status, answer.json["status"]) == (200, "cancelling")
    assert answer.json["cancelling_at"] is not None
    done = wait(server, batch, name="cancelling")
    assert done["status"] == "cancelled" and done["cancelled_at"] is not None
    check_unrun(server, done, "batch_cancelled", "cancelling")


@BATCHES.law("batches.cancel_again", "cancelled again, and when it is completed", on="team")
def cancelled_again(server: Server) -> None:
    """A second cancel is answered as the first; that of a completed batch is a 409 that SDKs do not retry."""
    batch = submit(server, GOOD)
    first = ask(server, "POST", f"/v1/batches/{batch['id']}/cancel")
    if first.status == 200:
        wait(server, batch)
        again = ask(server, "POST", f"/v1/batches/{batch['id']}/cancel")
        assert (again.status, again.json["status"]) == (200, "cancelled")
    done = run(server, GOOD)
    refused = ask(server, "POST", f"/v1/batches/{done['id']}/cancel")
    assert_error(refused, 409, error_of("Cannot cancel a batch with status 'completed'."))
    assert refused.headers["x-should-retry"] == "false"


@BATCHES.law("batches.expired", "a batch whose 24 hours are over", on="team")
def expired(server: Server) -> None:
    """An expired batch keeps what is finished; the other lines are in the error file, and not counted as failed."""
    batch = waiting(server, "expiring")
    server.expire(batch["id"])
    done = wait(server, batch, name="expiring")
    assert (done["status"], done["expired_at"] is not None) == ("expired", True)
    check_unrun(server, done, "batch_expired", "expiring")


@BATCHES.law("batches.list", "25 batches, listed by ten, and by OpenAI's SDK for Python", on="team", needs_socket=True)
def listed_batches(server: Server) -> None:
    """Lists have the newest first, and continue after an id."""
    ids = ids_of(lambda: create(server, "file-none", "lister"), 25)
    found: list[str] = []
    while True:
        after = f"&after={found[-1]}" if found else ""
        page = ask(server, "GET", f"/v1/batches?limit=10{after}", name="lister").json
        found += [each["id"] for each in page["data"]]
        assert page["last_id"] == found[-1]
        if not page["has_more"]:
            break
    assert found == ids[::-1]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY_PREFIX + "lister") as client:
        assert [batch.id for batch in client.batches.list(limit=10)] == ids[::-1]
    assert len(ask(server, "GET", "/v1/batches", name="lister").json["data"]) == 20


@BATCHES.law("batches.unknown", "an unknown batch, and another key's", on="team")
def unknown_batches(server: Server) -> None:
    """A batch that does not exist, or is another key's, is a 404 in the same words."""
    theirs = create(server, "file-none", "another").json["id"]
    for batch_id in ("batch_none", theirs):
        for method, path in (("GET", ""), ("POST", "/cancel")):
            answer = ask(server, method, f"/v1/batches/{batch_id}{path}")
            assert_error(answer, 404, error_of(f"No batch found with id '{batch_id}'."))


@BATCHES.law("batches.idempotency", "the same Idempotency-Key twice", on="team")
def idempotency(server: Server) -> None:
    """With an Idempotency-Key, a batch that is made again is the same one."""
    fields = {"input_file_id": "file-none", "endpoint": COMPLETIONS, "completion_window": "24h"}
    headers = key() | {"idempotency-key": "parity-1"}
    first, second = (server.send("POST", "/v1/batches", json.dumps(fields).encode(), headers) for _ in range(2))
    assert first.json["id"] == second.json["id"]
