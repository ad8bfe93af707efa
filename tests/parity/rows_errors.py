"""Errors: message, type, param, code, status and format (behaviour §11)."""

from __future__ import annotations

import base64
import json
import socket

from tests.waiting import wait_for

from .servers import COMPLETIONS, KEY, Server
from .table import Area, Expect, base, error_of, get, header, post, says

AREA = Area("Errors", "§11")
GATEWAY = says(
    "indented by four, final newline",
    lambda answer: answer.raw.startswith(b'{\n    "error": {\n        "') and answer.raw.endswith(b"}\n"),
)
ENGINE = says(
    "indented by two, no final newline",
    lambda answer: answer.raw.startswith(b'{\n  "error": {\n    "message"') and answer.raw.endswith(b"}"),
)
ORDER = says("keys message, type, param, code", lambda a: list(a.error) == ["message", "type", "param", "code"])
CHARSET = header("content-type", "application/json; charset=utf-8")

for name, body, reason in (
    ("brace", b"{", "it ends before the JSON is complete."),
    ("empty", b"", "it is empty."),
    ("text", b"hello", "invalid character near line 1, column 1."),
    ("trailing", b'{"model":"toy"}\nx', "trailing characters near line 2, column …"),
    ("comma", b'{"model":"toy",}', "trailing comma in object near line 1, column 16."),
    ("single_quotes", b"{'model':'toy'}", "object keys must be strings in double quotes near line 1, column 2."),
    ("nan", b'{"model":"toy","temperature":NaN}', "invalid character near line 1, column 30."),
    ("utf8", b'{"model":"toy","prompt":"\xff\xfe"}', "it is not valid UTF-8 at line 1, column 26."),
    ("utf16", '{"model":"toy"}'.encode("utf-16"), "it is not valid UTF-8 at line 1, column 1."),
    (
        "surrogate",
        b'{"model":"toy","prompt":"\\ud800"}',
        "half of a surrogate pair is not a character.",
    ),
    ("deep", b"[" * 100_000, "its arrays and objects are nested too deeply."),
    ("deep_object", b'{"model":' * 50_000, "its arrays and objects are nested too deeply."),
):
    AREA.sends(
        f"json.{name}",
        f"a body that is not JSON ({name}) is rejected; the message says what is wrong and where",
        post(body),
        GATEWAY,
        ORDER,
        CHARSET,
        status=400,
        error=error_of(f"We could not parse the JSON body of your request: {reason}"),
        golden=(67,),
        source="behaviour §11",
        weak="OpenAI's message continues with a hint about its help centre, which cannot help with this server.",
    )
for name, body in (("array", b"[]"), ("string", b'"x"'), ("number", b"5"), ("null", b"null")):
    AREA.sends(
        f"json.{name}",
        f"a body that is JSON but not an object ({name}) is rejected",
        post(body),
        status=400,
        error=error_of("Invalid type for the request body: expected an object…", code="invalid_type"),
        weak="Not recorded.",
    )

for kind in ("multipart/form-data", "text/plain", "application/x-www-form-urlencoded"):
    AREA.sends(
        f"content_type.{kind}",
        f"content type {kind} is rejected",
        post(base(), content_type=kind),
        GATEWAY,
        status=400,
        error=error_of(
            f"Unsupported content type: '{kind}'. This API method only accepts 'application/json' requests, but "
            f"you specified the header 'Content-Type: {kind}'. Please try again with a supported content type.",
            code="unsupported_content_type",
        ),
        source="behaviour §1, §11",
    )
for kind in ("application/json; charset=utf-8", "application/json;charset=UTF-8", "Application/JSON"):
    AREA.sends(
        f"content_type.ok.{kind}",
        f"content type {kind} is accepted",
        post(base(), content_type=kind),
        source="behaviour §1",
    )

AREA.refused(
    "unknown.one",
    "an unknown field is rejected",
    {"foo": 1},
    "Unrecognized request argument supplied: foo",
    golden=(72,),
    source="behaviour §2",
)
AREA.refused(
    "unknown.near",
    "an unknown field with nearly the name of a known one is rejected with a hint",
    {"temprature": 1},
    "Unrecognized request argument supplied: temprature. Did you mean 'temperature'?",
    source="behaviour §2",
    weak="The hint is ours; the strict profile has OpenAI's words alone.",
)
AREA.refused(
    "unknown.near.strict",
    "strict profile: without a hint",
    {"temprature": 1},
    "Unrecognized request argument supplied: temprature",
    on="strict",
    source="behaviour §2",
)
AREA.refused(
    "unknown.two",
    "several unknown fields are named together",
    {"foo": 1, "bar": None},
    "Unrecognized request arguments supplied: foo, bar",
    source="behaviour §2",
)
for extra in ("top_k", "min_p", "ignore_eos", "max_completion_tokens", "repetition_penalty", "options"):
    AREA.refused(
        f"unknown.strict.{extra}",
        f"strict profile: {extra} is unknown, as at OpenAI",
        {extra: 1},
        f"Unrecognized request argument supplied: {extra}",
        on="strict",
        source="behaviour §2",
    )
AREA.served(
    "unknown.lenient",
    "lenient profile: unknown fields pass",
    {"foo": 1, "guided_json": {}},
    on="lenient",
    source="behaviour W25",
)
for name, wrong, words in (
    ("unknown_before_type", {"foo": 1, "n": "x"}, "Unrecognized request argument supplied: foo"),
    ("model_before_unknown", {"foo": 1, "model": None}, "you must provide a model parameter"),
):
    AREA.refused(f"order.{name}", f"order of checks: {name.replace('_', ' ')}", wrong, words)
AREA.refused(
    "order.type_before_together",
    "order of checks: types before rules between fields",
    {"n": 3, "best_of": 1, "top_p": "x"},
    "Invalid type for 'top_p': expected a decimal, but got a string instead.",
    param="top_p",
    code="invalid_type",
)
AREA.refused(
    "order.together_before_model",
    "order of checks: rules between fields before the model",
    {"n": 3, "best_of": 1, "model": "nope"},
    "You requested that the server return more choices than it will generate…",
)
AREA.refused(
    "order.model_before_tokens",
    "order of checks: the model before token ids",
    {"prompt": [9999], "model": "nope"},
    "The model `nope` does not exist…",
    code="model_not_found",
    status=404,
)
AREA.refused(
    "order.choices_before_tokens",
    "order of checks: the number of choices before token ids",
    {"prompt": [[9999]] * 21},
    "Too many parallel completions requested. You submitted 21 prompts…",
    on="guarded",
)
AREA.refused(
    "order.tokens_before_context",
    "order of checks: token ids before the context",
    {"prompt": [9999] * 3000},
    "Invalid token in prompt: 9999. Minimum value is 0, maximum value is 272 (inclusive).",
)


@AREA.law("engine.layout", '"temperature": 3', golden=(74,))
def engine_layout(server: Server) -> None:
    """Errors of the request itself are indented by two, without charset, with all four keys."""
    answer = server.ask(temperature=3)
    ENGINE(answer)
    ORDER(answer)
    assert answer.headers["content-type"] == "application/json"
    assert "openai-model" not in answer.headers and "cache-control" not in answer.headers
    assert answer.headers["x-request-id"].startswith("req_")


# --- routes -----------------------------------------------------------------------------------------------------

for path, hint in (
    ("/v1/nope", ""), ("/v1/chat", ""), ("/openai/nope", ""), ("/v1/completions/", ". Did you mean /v1/completions?"),
):  # fmt: skip
    AREA.sends(
        f"url.{path}",
        f"POST {path}: unknown",
        post(base(), path),
        GATEWAY,
        CHARSET,
        status=404,
        error=error_of(f"Invalid URL (POST {path}){hint}"),
        golden=(71,),
        weak="The hint is ours." if hint else "",
    )
for path, field in (
    ("/v1/chat/completions", "messages"),
    ("/v1/responses", "input"),
    ("/v1/messages", "messages"),
):
    AREA.sends(
        f"url.{path}",
        f"POST {path}: the message says that this server implements completions only, and what to do",
        post(base(), path),
        GATEWAY,
        CHARSET,
        status=404,
        error=error_of(
            f"Invalid URL (POST {path}). This server implements the Completions API only. Send POST /v1/completions "
            f"with `prompt` instead of `{field}`; the client's base URL stays the same."
        ),
        golden=(71,),
        source="behaviour §11",
        weak="The message begins as OpenAI's for an unknown URL; the advice is ours.",
    )
AREA.sends(
    "url.embeddings",
    "POST /v1/embeddings: the message says that this server implements completions only",
    post(base(), "/v1/embeddings"),
    GATEWAY,
    CHARSET,
    status=404,
    error=error_of(
        "Invalid URL (POST /v1/embeddings). This server implements the Completions API only (POST /v1/completions "
        "with `prompt`); see the docs at /docs."
    ),
    source="behaviour §11",
    weak="The message begins as OpenAI's for an unknown URL; the advice is ours.",
)
AREA.sends(
    "url.outside",
    "an unknown URL outside /v1 has another message and another order of keys",
    post(base(), "/nope"),
    says("keys type, code, message, param", lambda a: list(a.error) == ["type", "code", "message", "param"]),
    status=404,
    error=error_of("Unknown request URL: POST /nope. …", code="unknown_url"),
    weak="OpenAI's words end with an address of its documentation; ours with /docs.",
)
for method in ("GET", "PUT", "DELETE", "PATCH"):
    AREA.sends(
        f"method.{method}",
        f"{method} {COMPLETIONS} is a 405",
        (method, COMPLETIONS, b"", {}),
        GATEWAY,
        header("allow", "OPTIONS, POST"),
        status=405,
        error=error_of("Only POST requests are accepted.", code="method_not_supported"),
        golden=(70,),
    )
AREA.sends(
    "method.models",
    "POST /v1/models is a 405 with the message of other routes",
    post(base(), "/v1/models"),
    status=405,
    error=error_of("Not allowed to POST on /v1/models. (HINT: Perhaps you meant to use a different HTTP method?)"),
    source="behaviour §7",
)
AREA.sends(
    "model.get",
    "GET of an unknown model is a 404",
    get("/v1/models/nope"),
    status=404,
    error=error_of("The model 'nope' does not exist", "model", "model_not_found"),
    source="behaviour §7",
)

# --- keys -------------------------------------------------------------------------------------------------------

NO_KEY = error_of(
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY), or as the password field (with blank username) if you're accessing "
    "the API from your browser and are prompted for a username and password. …"
)
AUTH: tuple[Expect, ...] = (GATEWAY, CHARSET, header("x-request-id", "req_[0-9a-f]{32}"))
for name, headers in (("none", {}), ("empty", {"authorization": "Bearer "}), ("blank", {"authorization": ""})):
    AREA.sends(
        f"key.{name}",
        f"keys on, {name} key: 401 without a code",
        post(base(), **headers),
        *AUTH,
        status=401,
        error=NO_KEY,
        golden=(66,),
        on="guarded",
        weak="The last sentence, where to get a key, mentions the operator instead of a web page.",
    )
WRONG = "sk-wrong-secret-part-key"
AREA.sends(
    "key.wrong",
    "keys on, wrong key: 401 with the key masked except for eight and four characters",
    post(base(), authorization=f"Bearer {WRONG}"),
    *AUTH,
    status=401,
    error=error_of(f"Incorrect API key provided: sk-wrong{'*' * (len(WRONG) - 12)}-key. …", code="invalid_api_key"),
    golden=(66,),
    on="guarded",
)
AREA.sends(
    "key.short",
    "a short incorrect key is masked completely",
    post(base(), authorization="Bearer abc"),
    status=401,
    error=error_of("Incorrect API key provided: ***. …", code="invalid_api_key"),
    on="guarded",
    weak="The recorded mask is for long keys.",
)
for name, headers in (
    ("bearer", {"authorization": f"Bearer {KEY}"}),
    ("lower", {"authorization": f"bearer {KEY}"}),
    ("api-key", {"api_key": KEY}),
    ("x-api-key", {"x_api_key": KEY}),
    ("basic", {"authorization": "Basic " + base64.b64encode(f":{KEY}".encode()).decode()}),
    ("empty bearer and api-key", {"authorization": "Bearer ", "api_key": KEY}),
):
    AREA.sends(
        f"key.ok.{name}",
        f"the key is accepted: {name}",
        post(base(max_tokens=1), **headers),
        on="guarded",
        source="behaviour W24",
    )
for name, headers in (("empty", {"authorization": "Bearer "}), ("any", {"authorization": "Bearer sk-anything"})):
    AREA.sends(
        f"key.off.{name}",
        f"keys off: {name} bearer token is tolerated",
        post(base(max_tokens=1), **headers),
        source="behaviour W24",
    )
AREA.sends(
    "key.order", "a missing key is reported before an invalid body", post(b"{"), status=401, error=NO_KEY, on="guarded"
)
AREA.sends(
    "key.order_url",
    "an unknown URL is reported before a missing key",
    post(b"{", "/v1/nope"),
    status=404,
    error=error_of("Invalid URL (POST /v1/nope)"),
    on="guarded",
)
AREA.sends("key.health", "/health needs no key", get("/health"), on="guarded")
AREA.sends("key.metrics", "/metrics needs a key", get("/metrics"), status=401, error=NO_KEY, on="guarded")

# --- limits -----------------------------------------------------------------------------------------------------

AREA.sends(
    "large",
    "a body over the limit is a 413 with an error body",
    post(b'{"prompt":"' + b"x" * 5000 + b'"}', api_key=KEY),
    GATEWAY,
    status=413,
    error=error_of("The request body is larger than the 4000 bytes that this server accepts."),
    on="guarded",
    weak="OpenAI's proxy responds with an HTML page; clients need the error body.",
)
OVERLOADED = (
    "That model is currently overloaded with other requests. You can retry your request, or contact us through "
    "our help center at help.openai.com if the error persists."
)


@AREA.law("overload", "one request more than the queue can hold", on="guarded", source="behaviour §11; W21")
def overload(server: Server) -> None:
    """A full waiting queue is a 503 with Retry-After; later requests are served again."""
    busy = base(stream=True, n=20, max_tokens=1900, ignore_eos=True, temperature=1)
    with server.streaming(busy, {"api-key": KEY}):
        answer = server.ask(max_tokens=1)
        assert answer.status == 503, f"{answer.status} {answer.error}"
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.error == error_of(OVERLOADED, type="server_error")
    wait_for(lambda: server.ask(max_tokens=1).status == 200, "a free place in the queue")


OURS = error_of("The server had an error while processing your request. Sorry about that!", type="server_error")
FORCED = {"logit_bias": {"113": 100}, "ignore_eos": True}
AREA.sends(
    "internal",
    "an internal error has OpenAI's message, without the cause",
    post(base(**FORCED)),
    ENGINE,
    header("x-request-id", "req_[0-9a-f]{32}"),
    status=500,
    error=OURS,
    on="broken",
)


@AREA.law("internal.stream", "a stream that fails", on="broken", source="behaviour §4; W2")
def broken_stream(server: Server) -> None:
    """An error in the middle of a stream is one event with an `error` object; then the body ends."""
    for seed in range(40):
        answer = server.stream(temperature=1, seed=seed, max_tokens=40, ignore_eos=True)
        if answer.status == 200 and len(answer.data) > 3 and answer.data[-1] != "[DONE]":
            assert json.loads(answer.data[-1]) == {"error": OURS}
            assert all("error" not in json.loads(event) for event in answer.data[:-1])
            return
    raise AssertionError("no stream broke in its middle")


@AREA.law("internal.others", "another request next to one that fails", on="broken")
def others_go_on(server: Server) -> None:
    """A request that fails does not affect others, and frees its KV blocks."""
    assert server.ask(**FORCED).status == 500
    assert server.ask(logit_bias={"97": 100}).text == "a" * 16
    wait_for(lambda: not server.metric("onward_kv_blocks_used"), "free KV blocks")  # replicas report with a delay


@AREA.law("not_http", "bytes that are not HTTP", source="behaviour W6", weak="Not recorded.", needs_socket=True)
def not_http(server: Server) -> None:
    """Bytes that are not HTTP get a 400 with an error body, and the connection is closed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        received = b""
        while piece := connection.recv(65536):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and set(json.loads(body)["error"]) == {
        "message",
        "type",
        "param",
        "code",
    }
