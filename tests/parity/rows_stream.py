"""`stream` and `stream_options`: the same completion as events (behaviour §4)."""

from __future__ import annotations

import json
from typing import Any

from tests.waiting import wait_for

from .servers import COMPLETIONS, Answer, Server
from .table import Area, base

AREA = Area("Streams", "§4")
SEEDED: dict[str, Any] = {"temperature": 1, "seed": 11, "max_tokens": 24, "ignore_eos": True}
WIRE = "behaviour §14"


@AREA.law("stream.wire", '"stream": true', golden=(55,), source=f"{WIRE} 3, 4")
def wire_format(server: Server) -> None:
    """Events are `data: ` and one line of compact JSON, LF only; the last is [DONE]; the body ends there."""
    answer = server.stream()
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache, must-revalidate"
    assert answer.data[-1] == "[DONE]" and answer.raw.endswith(b"data: [DONE]\n\n")
    for event in answer.data[:-1]:
        assert event == json.dumps(json.loads(event), separators=(",", ":"), ensure_ascii=False)


@AREA.law("stream.chunk", '"stream": true', golden=(56,), source=f"{WIRE} 1, 7, 8")
def chunk_shape(server: Server) -> None:
    """Chunks share id, created and model, and have one choice with all four keys, no `error` and no `usage`."""
    chunks = server.stream(n=2).chunks
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    for chunk in chunks:
        assert list(chunk) == ["id", "object", "created", "choices", "model", "system_fingerprint"]
        assert chunk["object"] == "text_completion" and type(chunk["created"]) is int
        (choice,) = chunk["choices"]
        assert list(choice) == ["text", "index", "logprobs", "finish_reason"]
        assert isinstance(choice["text"], str) and type(choice["index"]) is int


@AREA.law("stream.finish", '"stream": true, "n": 3', golden=(57,), source=f"{WIRE} 9")
def finish_comes_last(server: Server) -> None:
    """Each choice ends exactly once, with a documented reason, and no text follows."""
    for fields in ({"max_tokens": 5, "ignore_eos": True}, {"max_tokens": 200, "stop": ["e"]}):
        ended: dict[int, str] = {}
        for chunk in server.stream(n=3, temperature=1, seed=1, **fields).chunks:
            (choice,) = chunk["choices"]
            assert choice["index"] not in ended
            if choice["finish_reason"] is not None:
                ended[choice["index"]] = choice["finish_reason"]
        assert sorted(ended) == [0, 1, 2] and set(ended.values()) <= {"stop", "length"}


@AREA.law("stream.length_pattern", '"stream": true, "max_tokens": 5')
def length_on_last_token(server: Server) -> None:
    """One chunk per token; `length` is in the chunk of the last token."""
    choices = [chunk["choices"][0] for chunk in server.stream(max_tokens=5, ignore_eos=True).chunks]
    assert len(choices) == 5 and all(choice["text"] for choice in choices)
    assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["length"]


@AREA.law("stream.stop_pattern", '"stream": true, and an end of text')
def stop_in_its_own_chunk(server: Server) -> None:
    """`stop` is in a separate chunk, without text, with empty arrays."""
    text = server.ask(max_tokens=20, ignore_eos=True).text
    last = server.stream(max_tokens=20, stop=text[9:11], logprobs=2).chunks[-1]["choices"][0]
    assert last["text"] == "" and last["finish_reason"] == "stop"
    assert last["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


@AREA.law("stream.usage", '"stream_options": {"include_usage": true}', golden=(58,), source=f"{WIRE} 12")
def usage_chunk(server: Server) -> None:
    """include_usage: `usage` is null in every chunk; one more chunk, without choices, has the token counts."""
    for fields in ({**SEEDED, "n": 2}, {"stop": "e"}, {"max_tokens": 0}, {"echo": True, "prompt": ["a", "b"]}):
        whole = server.ask(**fields)
        *chunks, last = server.stream(**fields, stream_options={"include_usage": True}).chunks
        assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
        assert last["choices"] == []
        for count in ("prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details"):
            assert last["usage"][count] == whole.usage[count]


@AREA.law("stream.usage_running", '"continuous_usage_stats": true', source="behaviour §9")
def running_usage(server: Server) -> None:
    """continuous_usage_stats: every chunk has the token counts so far."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = server.stream(max_tokens=5, ignore_eos=True, stream_options=options).chunks
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5, 5]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {17}


@AREA.law("stream.usage_stop", '"continuous_usage_stats": true, "stop": …', source="behaviour §9")
def running_usage_and_stop(server: Server) -> None:
    """Token counts so far never fall: those of text that may become a stop string come with that text."""
    text = server.ask(max_tokens=20, ignore_eos=True).text
    options = {"include_usage": True, "continuous_usage_stats": True}
    for stop in (text[5:9], text[5:8] + "\u2603"):
        chunks = server.stream(max_tokens=20, stop=stop, ignore_eos=True, stream_options=options).chunks
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == (text.index(stop) if stop in text else 20)


for name, options in (
    ("empty", {}),
    ("null", None),
    ("null_inside", {"include_usage": None}),
    ("off", {"include_usage": False, "include_obfuscation": False}),
):

    @AREA.law(f"stream.options_{name}", f'"stream_options": {json.dumps(options)}', golden=(60,))
    def no_usage(server: Server, options: dict[str, Any] | None = options) -> None:
        """Stream options at their defaults change nothing."""
        chunks = server.stream(stream_options=options).chunks
        assert all(not {"usage", "obfuscation"} & set(chunk) for chunk in chunks)


AREA.refused(
    "stream_options.alone",
    "stream_options without stream is rejected",
    {"stream_options": {"include_usage": True}},
    "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
    param="stream_options",
    golden=(59,),
    source="behaviour §2.13",
)


@AREA.law(
    "stream.obfuscation",
    '"stream_options": {"include_obfuscation": true}',
    weak="Documented as on by default, but seen in the Chat API only (§4); here it is off by default.",
)
def lengths_tell_nothing(server: Server) -> None:
    """include_obfuscation: events have the same size for tokens of any length; the text does not change."""
    options = {"include_obfuscation": True}
    lengths: dict[int, set[int]] = {}
    for token in (97, 261, 268, 270, 271):  # one to five characters, one of four bytes
        fields = {"logit_bias": {str(token): 100}, "max_tokens": 5}
        answer = server.stream(**fields, stream_options=options)
        assert answer.joined() == server.ask(**fields).text
        paddings = [chunk["obfuscation"] for chunk in answer.chunks]
        assert len(set(paddings)) == len(paddings)
        lengths[token] = {len(event.encode()) for event in answer.data[:-1]}
    assert len(set.union(*lengths.values())) == 1, lengths
    plain = server.stream(logit_bias={"268": 100}, max_tokens=5)
    assert {len(event) for event in plain.data[:-1]} != set.union(*lengths.values())


def folded(answer: Answer) -> dict[int, dict[str, Any]]:
    """The choices that a stream's chunks add up to."""
    whole: dict[int, dict[str, Any]] = {}
    for chunk in answer.chunks:
        for part in chunk["choices"]:
            choice = whole.setdefault(part["index"], {**part, "text": "", "logprobs": None})
            choice["text"] += part["text"]
            choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]
            if part["logprobs"] is not None:
                old = choice["logprobs"] or {key: [] for key in part["logprobs"]}
                choice["logprobs"] = {
                    key: None if value is None else old[key] + value for key, value in part["logprobs"].items()
                }
    return whole


for name, fields in (
    ("plain", {}),
    ("n", {"n": 2}),
    ("echo", {"echo": True}),
    ("logprobs", {"logprobs": 3}),
    ("logprobs_0", {"logprobs": 0}),
    ("echo_logprobs", {"echo": True, "logprobs": 2, "n": 2}),
    ("score", {"echo": True, "logprobs": 2, "max_tokens": 0}),
    ("batch", {"prompt": ["a", "bb"], "n": 2, "logprobs": 1}),
    ("stop", {"stop": ["e", " t"], "logprobs": 1, "max_tokens": 60}),
    ("stop_echo", {"stop": ["e"], "logprobs": 1, "echo": True}),
    ("emoji", {"logit_bias": {"271": 8}, "logprobs": 2}),
    ("split", {"logit_bias": {str(byte): 16 for byte in "é🙂".encode()}, "logprobs": 2, "max_tokens": 40}),
    ("suffix", {"suffix": "zz", "logprobs": 1}),
    ("ids", {"return_tokens_as_token_ids": True, "logprobs": 1}),
    ("special", {"skip_special_tokens": False, "logit_bias": {"258": 5}, "logprobs": 1}),
    ("end", {"ignore_eos": False, "logit_bias": {"256": 3}, "logprobs": 1, "echo": True}),
):

    @AREA.law(f"fold.{name}", json.dumps({**SEEDED, **fields}), golden=(61, 63), source="law 1; behaviour §8")
    def equal(server: Server, fields: dict[str, Any] = fields) -> None:
        """Joined chunks equal the completion: texts, logprobs, finish reasons."""
        asked = {**SEEDED, **fields}
        whole = server.ask(**asked)
        assert whole.status == 200, whole.raw
        assert sorted(folded(server.stream(**asked)).items()) == list(enumerate(whole.choices))


@AREA.law(
    "stream.interleaved",
    '"n": 2, "stream": true',
    golden=(61,),
    weak="One report of 2023 has one choice only; all clients expect chunks with an index.",
)
def interleaved(server: Server) -> None:
    """The choices of a stream are interleaved: none waits for the end of another."""
    order = [chunk["choices"][0]["index"] for chunk in server.stream(**SEEDED, n=2).chunks]
    assert order.count(0) > 1 and order.count(1) > 1
    assert order != sorted(order) and order != sorted(order, reverse=True)


@AREA.law("stream.echo", '"echo": true, "stream": true', golden=(62,))
def echo_first(server: Server) -> None:
    """The first chunk has the prompt and the first token, with the logprobs of both."""
    first = server.stream(echo=True, logprobs=1, max_tokens=3, ignore_eos=True).chunks[0]["choices"][0]
    assert first["text"].startswith("Say this is a test") and len(first["text"]) == 19
    assert len(first["logprobs"]["tokens"]) == 18


@AREA.law("stream.echo_score", '"echo": true, "max_tokens": 0, "stream": true')
def score_streams(server: Server) -> None:
    """Scoring a prompt streams one chunk with finish_reason length."""
    (only,) = server.stream(echo=True, max_tokens=0).chunks
    assert only["choices"][0]["text"] == "Say this is a test"
    assert only["choices"][0]["finish_reason"] == "length"


@AREA.law("stream.offset", '"logprobs": 1, "stream": true', golden=(63,))
def offsets_absolute(server: Server) -> None:
    """Offsets in chunks count from the start of the prompt."""
    chunks = server.stream(logprobs=1, max_tokens=3, ignore_eos=True).chunks
    assert [chunk["choices"][0]["logprobs"]["text_offset"][0] for chunk in chunks] == [18, 19, 20]


@AREA.law("stream.characters", "the bytes of é and 🙂, forced one by one", golden=(64,))
def whole_characters(server: Server) -> None:
    """A chunk never contains an incomplete character."""
    bias = {str(byte): 30 for byte in "é".encode()}
    answer = server.stream(prompt="x", logit_bias=bias, max_tokens=40, temperature=1, seed=2)
    whole = server.ask(prompt="x", logit_bias=bias, max_tokens=40, temperature=1, seed=2)
    assert answer.joined() == whole.text
    emoji = server.stream(logit_bias={"271": 100}, max_tokens=3)
    assert emoji.joined() == "🙂🙂🙂" and "\ufffd" not in emoji.raw.decode()


@AREA.law("stream.accept", '"stream": true with Accept: application/json', source=f"{WIRE} 11")
def accept_is_ignored(server: Server) -> None:
    """The Accept header has no effect."""
    body = json.dumps(base(stream=True, max_tokens=1)).encode()
    for accept in ("application/json", "text/event-stream", "image/png"):
        answer = server.send("POST", COMPLETIONS, body, {"accept": accept})
        assert answer.status == 200 and answer.headers["content-type"] == "text/event-stream"


@AREA.law("stream.departure", "a client that disconnects after the first chunk", golden=(65,), source=f"{WIRE} 23")
def departure(server: Server) -> None:
    """A disconnect stops the request; the next request is served at once, and no KV block is lost."""
    body = base(stream=True, n=8, max_tokens=1900, ignore_eos=True, temperature=1)
    with server.streaming(body):
        pass
    assert server.ask(max_tokens=1).status == 200
    names = ("onward_kv_blocks_used", "onward_engine_running")
    wait_for(lambda: not any(map(server.metric, names)), "the end of the departed client's sequences")


@AREA.law("stream.resumable", '"stream_options": {"resumable": true}', source="extension")
def resumable_stream(server: Server) -> None:
    """Each event has an id. `GET /v1/completions/{id}` sends what follows, or all, or the whole answer."""
    fields = {**SEEDED, "n": 2, "logprobs": 2}
    answer = server.stream(**fields, stream_options={"resumable": True})
    blocks = answer.raw.decode().split("\n\n")[:-1]
    assert [block.split("\n")[0] for block in blocks] == [f"id: {number + 1}" for number in range(len(blocks))]
    plain = server.stream(**fields)
    chosen = [json.loads(block.partition("data: ")[2])["choices"][0] for block in blocks[:-1]]
    plainly = [chunk["choices"][0] for chunk in plain.chunks]
    for index in range(2):  # how two choices alternate is not specified
        assert [one for one in chosen if one["index"] == index] == [one for one in plainly if one["index"] == index]
    path = f"{COMPLETIONS}/{json.loads(blocks[0].partition('data: ')[2])['id']}"
    assert server.send("GET", path).raw == answer.raw
    rest = server.send("GET", path, headers={"last-event-id": "5"})
    assert rest.raw == "".join(block + "\n\n" for block in blocks[5:]).encode()
    whole = server.send("GET", path, headers={"accept": "application/json"}).json
    assert whole["choices"] == server.ask(**fields).choices
    assert server.send("GET", path, headers={"last-event-id": str(len(blocks))}).status == 204
    assert server.send("DELETE", path).json["deleted"] is True
    assert server.send("GET", path).status == 404
