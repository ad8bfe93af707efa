"""Routes, headers, and the format of completions."""

from __future__ import annotations

import json
import re
import time
from functools import partial
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from onward.settings import OPENAI_NAMES

from .servers import COMPLETIONS, Answer, Server
from .table import Area, base, get, header, no_header, post, says

SHAPE = Area("Format of completions", "§3")
ROUTES = Area("Routes and headers", "§1")


@SHAPE.law("shape", "{}", golden=(1, 4), source="behaviour §0.1, §1.2, §3")
def shape(server: Server) -> None:
    """The body: id, object, created, model, system_fingerprint, choices, usage, in this order, indented by two."""
    answer = server.ask()
    body = answer.json
    assert list(body) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"]
    assert re.fullmatch(r"cmpl-[A-Za-z0-9]{29}", body["id"])
    assert body["object"] == "text_completion" and type(body["created"]) is int
    assert abs(body["created"] - time.time()) < 60
    (choice,) = body["choices"]
    assert list(choice) == ["text", "index", "logprobs", "finish_reason"]
    assert choice["index"] == 0 and choice["logprobs"] is None and choice["finish_reason"] in ("stop", "length")
    assert answer.raw == json.dumps(body, indent=2, ensure_ascii=False).encode() + b"\n"


@SHAPE.law(
    "usage",
    "{}",
    source="behaviour §0.4",
    weak="Recordings omit a completion_tokens of 0 and the details; we follow the documented schema.",
)
def usage(server: Server) -> None:
    """usage has three counts that add up and both details objects, always in the documented order."""
    counts = server.ask(max_tokens=5, ignore_eos=True).usage
    assert list(counts) == [
        *("prompt_tokens", "completion_tokens", "total_tokens"),
        *("prompt_tokens_details", "completion_tokens_details"),
    ]
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]) == (17, 5, 22)
    details = counts["prompt_tokens_details"]
    assert list(details) == ["cached_tokens", "audio_tokens", "text_tokens", "image_tokens", "cache_write_tokens"]
    assert (details["audio_tokens"], details["text_tokens"], details["image_tokens"]) == (0, 17, 0)
    assert 0 <= details["cached_tokens"] + details["cache_write_tokens"] <= 17
    assert counts["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
        "text_tokens": 5,
    }


@SHAPE.law("usage.cached", "a long prompt twice", source="law 3")
def cached(server: Server) -> None:
    """cached_tokens counts the prompt tokens from the prefix cache; the result is the same."""
    prompt = f"{time.time_ns()} " + "once more " * 30
    first, second = server.ask(prompt=prompt, logprobs=2), server.ask(prompt=prompt, logprobs=2)
    assert first.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert 0 < second.usage["prompt_tokens_details"]["cached_tokens"] < second.usage["prompt_tokens"]
    assert first.choices == second.choices


@SHAPE.law(
    "fingerprint",
    "two requests",
    source="behaviour §2.10",
    weak="Documented, never recorded on this endpoint (§0.4); we send it.",
)
def fingerprint(server: Server) -> None:
    """system_fingerprint is the same in completions and chunks of all requests."""
    seen = {server.ask().json["system_fingerprint"], server.ask(n=2, seed=3).json["system_fingerprint"]}
    seen |= {chunk["system_fingerprint"] for chunk in server.stream().chunks}
    assert len(seen) == 1 and re.fullmatch(r"fp_\w+", seen.pop())


SHAPE.served(
    "unicode",
    "non-ASCII text is not escaped",
    {"logit_bias": {"271": 100}, "max_tokens": 2},
    says("raw 🙂", lambda answer: '"🙂🙂"'.encode() in answer.raw),
    source="behaviour §1",
)


@SHAPE.law("no_error_key", "{}", source="behaviour W1")
def no_error_key(server: Server) -> None:
    """A successful response has no `error` key, not even null."""
    assert "error" not in server.ask().json
    assert all("error" not in chunk for chunk in server.stream(n=2).chunks)


@SHAPE.law("schema.whole", "/openai/schemas/Completion.json against real responses", source="behaviour §10")
def whole_answers_fit_the_schema(server: Server) -> None:
    """/openai/schemas/Completion.json is a JSON Schema of all completions; incomplete ones do not conform to it."""
    schema = server.send("GET", "/openai/schemas/Completion.json").json
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    validator = kind(schema)
    for fields in (
        *(
            {},
            {"n": 3},
            {"logprobs": 3},
            {"logprobs": 0, "echo": True},
            {"echo": True, "logprobs": 2, "max_tokens": 0},
        ),
        *({"max_tokens": 0}, {"prompt": ["a", ""]}, {"logit_bias": {"256": 100}, "logprobs": 1}),
    ):
        for path in (COMPLETIONS, "/openai/v1/completions"):
            answer = server.ask(path=path, **fields)
            assert answer.status == 200
            validator.validate(answer.json)
    good = server.ask().json
    for key in ("id", "choices", "created", "model", "object"):
        assert not validator.is_valid({name: value for name, value in good.items() if name != key})


@SHAPE.law("schema.openapi", "/openapi.json against requests, responses, chunks and errors", source="the API itself")
def openapi_fits(server: Server) -> None:
    """/openapi.json describes requests, completions, chunks, errors and models."""
    document = server.send("GET", "/openapi.json").json
    assert document["openapi"].startswith("3.1")

    def validate(name: str, value: Any) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(value)

    validate("CompletionRequest", base(logprobs=2, stop=["a"], logit_bias={"5": 1}))
    validate("Completion", server.ask(logprobs=2, echo=True).json)
    for chunk in server.stream(logprobs=1, stream_options={"include_usage": True}).chunks:
        validate("CompletionChunk", chunk)
    validate("Error", server.ask(n=0).json)
    validate("ModelList", server.send("GET", "/v1/models").json)


# --- headers ----------------------------------------------------------------------------------------------------

ROUTES.served(
    "headers",
    "headers of a successful response",
    {},
    header("content-type", "application/json"),
    header("x-request-id", "req_[0-9a-f]{32}"),
    header("openai-processing-ms", r"\d+"),
    header("openai-version", "2020-10-01"),
    header("openai-model", "toy"),
    header("cache-control", "no-cache, must-revalidate"),
    header("access-control-allow-origin", r"\*"),
    header("access-control-expose-headers", "X-Request-ID, Onward-Seed"),
    header("x-content-type-options", "nosniff"),
    golden=(6,),
    source="behaviour §1.1; W22",
)
ROUTES.sends(
    "headers.error",
    "headers of a rejection: no model, no caching rule, but an id",
    post(base(n=0)),
    header("x-request-id", "req_[0-9a-f]{32}"),
    header("openai-version", "2020-10-01"),
    header("openai-processing-ms", r"\d+"),
    no_header("openai-model"),
    no_header("cache-control"),
    status=400,
    source="behaviour §1.1",
)


@ROUTES.law("headers.unique", "two requests", source="behaviour W22")
def ids_differ(server: Server) -> None:
    """Every request and every completion has its own id."""
    answers = [server.ask() for _ in range(5)]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 5
    assert len({answer.json["id"] for answer in answers}) == 5


ROUTES.sends(
    "preflight",
    "OPTIONS responds to a browser's preflight request",
    (
        "OPTIONS",
        COMPLETIONS,
        b"",
        {"origin": "http://localhost:5173", "access-control-request-headers": "authorization"},
    ),
    header("access-control-allow-methods", "OPTIONS, POST"),
    header("access-control-allow-headers", "authorization"),
    status=204,
)

ROUTES.sends(
    "upgrade",
    "an offer to upgrade to HTTP/2, as from Java's client, is ignored; the body is not lost",
    post(base(), connection="Upgrade, HTTP2-Settings", upgrade="h2c", http2_settings="AAEAAEAAAAIAAAABAAMAAABk"),
    says("an answer", lambda answer: len(answer.choices) == 1),
    source="RFC 9110 §7.8; HttpClient of Java 17",
)

# --- routes -----------------------------------------------------------------------------------------------------


@ROUTES.law("openai.schema", "POST /openai/v1/completions", golden=(79,), source="behaviour §10")
def linked(server: Server) -> None:
    """/openai/v1/completions: `$schema` is the first key, the URL of the schema; Link has rel=describedBy."""
    answer = server.ask(path="/openai/v1/completions")
    assert next(iter(answer.json)) == "$schema"
    assert answer.json["$schema"] == f"{server.url}/openai/schemas/Completion.json"
    assert answer.headers["link"] == '</openai/schemas/Completion.json>; rel="describedBy"'
    assert server.send("GET", answer.json["$schema"].removeprefix(server.url)).json["type"] == "object"
    plain = server.ask()
    assert "$schema" not in plain.json and "link" not in plain.headers
    assert answer.choices == plain.choices


@ROUTES.law("openai.stream", 'POST /openai/v1/completions, "stream": true', source="behaviour §10")
def linked_stream(server: Server) -> None:
    """Streams of this route are the same as others: chunks have no `$schema`."""
    assert all("$schema" not in chunk for chunk in server.ask(path="/openai/v1/completions", stream=True).chunks)


@ROUTES.law("openai.forwarded", "X-Forwarded-Host, X-Forwarded-Proto, Forwarded", source="behaviour §10")
def forwarded(server: Server) -> None:
    """Behind a proxy, `$schema` has the address that the client uses."""
    body = json.dumps(base()).encode()
    for headers, url in (
        ({"x-forwarded-host": "api.e.x", "x-forwarded-proto": "https"}, "https://api.e.x"),
        ({"forwarded": 'for=1.2.3.4;host="api.e.x";proto=https'}, "https://api.e.x"),
    ):
        answer = server.send("POST", "/openai/v1/completions", body, headers)
        assert answer.json["$schema"] == f"{url}/openai/schemas/Completion.json"


ROUTES.same(
    "engines",
    "/v1/engines/{id}/completions is the same endpoint",
    {"path": "/v1/engines/toy/completions", "model": "toy"},
    {},
)
ROUTES.same(
    "without_v1",
    "/completions is the same endpoint, for clients whose base URL lacks /v1",
    {"path": "/completions"},
    {},
)
ROUTES.same(
    "openai_names",
    "The first model answers to the names of OpenAI's completions models",
    {"model": "babbage-002"},
    {},
)
for root in ("/v1", "/openai/v1"):
    ROUTES.sends(
        f"models.{root}",
        f"GET {root}/models lists models and aliases",
        get(f"{root}/models"),
        says(
            "list of models",
            lambda a: (
                a.json["object"] == "list"
                and all(
                    model["object"] == "model" and type(model["created"]) is int and isinstance(model["owned_by"], str)
                    for model in a.json["data"]
                )
            ),
        ),
        says(
            "toy, its alias, and OpenAI's other names",
            lambda a: [m["id"] for m in a.json["data"]] == ["toy", *OPENAI_NAMES],
        ),
        on="lenient",
        source="behaviour §7",
    )


def is_model(name: str, answer: Answer) -> bool:
    return bool(answer.json["id"] == name and answer.json["object"] == "model")


for name in ("toy", "gpt-3.5-turbo-instruct"):
    ROUTES.sends(
        f"model.{name}",
        f"GET /v1/models/{name}",
        get(f"/v1/models/{name}"),
        says("the model", partial(is_model, name)),
        on="lenient",
        source="behaviour §7",
    )
ROUTES.sends(
    "engines.list",
    "GET /v1/engines, as used by the first clients",
    get("/v1/engines"),
    says("engines", lambda a: a.json["data"][0]["object"] == "engine"),
    source="behaviour §14",
)

TOKENS = "behaviour §14"
ROUTES.sends(
    "tokenize",
    "POST /tokenize",
    post({"prompt": "once upon", "add_special_tokens": False}, "/tokenize"),
    says(
        "tokens, count, max_model_len",
        lambda a: a.json["count"] == len(a.json["tokens"]) > 0 and a.json["max_model_len"] == 2048,
    ),
    source=TOKENS,
)


@ROUTES.law("detokenize", "POST /tokenize, then /detokenize", source=TOKENS)
def there_and_back(server: Server) -> None:
    """/detokenize returns the text that /tokenize was given."""
    for text in ("once upon a time 🙂", "", "naïve\n", "<|endoftext|>"):
        body = json.dumps({"tokens": server.tokens(text)}).encode()
        assert server.send("POST", "/detokenize", body).json["prompt"] == text


ROUTES.sends(
    "tokenizer_info",
    "GET /tokenizer_info has the end token",
    get("/tokenizer_info"),
    says("eos_token", lambda a: a.json["eos_token"] == "<|endoftext|>"),
    source=TOKENS,
)
ROUTES.sends("health", "GET /health", get("/health"), says("ready", lambda a: a.json["status"] == "ready"))
ROUTES.sends(
    "docs",
    "GET /docs works offline",
    get("/docs"),
    header("content-type", "text/html; charset=utf-8"),
    says("no address of another host", lambda a: not re.search(rb"(src|href)=\"(https?:)?//(?!127\.0\.0\.1)", a.raw)),
    says("only errors that this server returns", lambda a: b"408" in a.raw and b"402" not in a.raw),
)
ROUTES.sends(
    "landing",
    "GET / is a web page",
    get("/"),
    header("content-type", "text/html; charset=utf-8"),
    says("a command with this server's address", lambda a: b"curl http://127.0.0.1:" in a.raw),
)
ROUTES.sends(
    "metrics",
    "GET /metrics",
    get("/metrics"),
    says("KV blocks", lambda a: b"onward_kv_blocks_used" in a.raw),
    says("version and process", lambda a: b"onward_build_info{" in a.raw and b"process_start_time_seconds" in a.raw),
)
