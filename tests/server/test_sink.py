"""Server-sent events: what is sent when, and how a stream ends."""

from __future__ import annotations

import asyncio

from onward.errors import EngineStopped
from onward.server.app import App
from tests.server.fakes import STORY, FakeBackend, completion, delta, events, in_loop, settings


@in_loop
async def test_a_stream_is_its_chunks_and_done() -> None:
    call = await completion(App(FakeBackend(), settings()), stream=True).done()
    *chunks, done = events(call.body)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " there was a fox"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("error" not in chunk and "usage" not in chunk for chunk in chunks)


@in_loop
async def test_a_stream_has_the_headers_of_events_and_no_length() -> None:
    call = await completion(App(FakeBackend(), settings()), stream=True).done()
    assert call.headers["content-type"] == "text/event-stream"
    assert call.headers["openai-model"] == "fake-model:1"
    assert call.headers["cache-control"] == "no-cache, must-revalidate"
    assert call.headers["x-request-id"].startswith("req_")
    assert "content-length" not in call.headers


@in_loop
async def test_the_accept_header_is_ignored() -> None:
    for accept in ("application/json", "text/event-stream", "*/*"):
        call = await completion(App(FakeBackend(), settings()), stream=True, headers={"accept": accept}).done()
        assert call.headers["content-type"] == "text/event-stream"


@in_loop
async def test_the_choices_of_one_step_are_sent_together() -> None:
    script = [delta("a") + delta("b", 1), delta("c", 0, "length") + delta("d", 1, "length")]
    call = await completion(App(FakeBackend(*script), settings()), stream=True, n=2).done()
    bodies = [message["body"] for message in call.sent[1:]]
    assert [len(events(body)) for body in bodies] == [2, 3]


@in_loop
async def test_the_body_closes_with_done() -> None:
    call = await completion(App(FakeBackend(), settings()), stream=True).done()
    assert call.sent[-1]["body"].endswith(b"data: [DONE]\n\n")
    assert call.sent[-1]["more_body"] is False


@in_loop
async def test_the_last_tokens_the_usage_and_done_are_sent_together() -> None:
    options = {"include_usage": True}
    call = await completion(App(FakeBackend(), settings()), stream=True, stream_options=options).done()
    *others, last = [events(message["body"]) for message in call.sent[1:]]
    assert [len(each) for each in others] == [1, 1]
    chunk, usage, done = last
    assert (chunk["choices"][0]["finish_reason"], usage["usage"]["completion_tokens"], done) == ("length", 3, "[DONE]")


@in_loop
async def test_what_a_step_generated_does_not_wait_for_the_end() -> None:
    rest = asyncio.Event()
    call = completion(App(FakeBackend(*STORY, rest), settings()), stream=True)
    await call.until(4)
    assert events(call.body)[-1]["choices"][0]["finish_reason"] == "length"
    rest.set()
    await call.done()
    assert call.sent[-1]["body"] == b"data: [DONE]\n\n"


@in_loop
async def test_usage_comes_last_when_requested() -> None:
    call = await completion(App(FakeBackend(), settings()), stream=True, stream_options={"include_usage": True}).done()
    *chunks, last, _ = events(call.body)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 7


@in_loop
async def test_obfuscated_events_have_one_length() -> None:
    call = await completion(
        App(FakeBackend(), settings()), stream=True, stream_options={"include_obfuscation": True}
    ).done()
    assert len({len(message["body"]) for message in call.sent[1:-1]}) == 1


@in_loop
async def test_nothing_is_sent_before_the_first_token() -> None:
    ready = asyncio.Event()
    call = completion(App(FakeBackend(ready, *STORY), settings()), stream=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert call.sent == []
    ready.set()
    await call.done()
    assert call.status == 200


@in_loop
async def test_a_chunk_is_sent_before_the_next_is_generated() -> None:
    rest = asyncio.Event()
    call = completion(App(FakeBackend(delta("a"), rest, delta("b", finish="length")), settings()), stream=True)
    await call.until(2)
    assert events(call.body)[0]["choices"][0]["text"] == "a"
    assert not call.ended
    rest.set()
    await call.done()
    assert call.ended


@in_loop
async def test_an_error_while_decoding_is_one_error_event_at_the_end() -> None:
    backend = FakeBackend(delta("a"), RuntimeError("secret"))
    call = await completion(App(backend, settings()), stream=True).done()
    chunk, error = events(call.body)
    assert chunk["choices"][0]["text"] == "a"
    assert error == {
        "error": {
            "message": "The server had an error while processing your request. Sorry about that!",
            "type": "server_error",
            "param": None,
            "code": None,
        }
    }
    assert call.ended
    assert backend.answers[0].closed.is_set()


@in_loop
async def test_an_idle_stream_gets_keep_alive_comments() -> None:
    rest = asyncio.Event()
    backend = FakeBackend(delta("a"), rest, delta("b", finish="length"))
    call = completion(App(backend, settings(keep_alive=0.01)), stream=True)
    await call.until(5)
    rest.set()
    await call.done()
    first, *comments, last, done = events(call.body)
    assert comments and all(comment is None for comment in comments)
    assert (first["choices"][0]["text"], last["choices"][0]["text"], done) == ("a", "b", "[DONE]")


@in_loop
async def test_a_long_wait_for_the_first_token_starts_the_stream_with_a_comment() -> None:
    ready = asyncio.Event()
    call = completion(App(FakeBackend(ready, *STORY), settings(keep_alive=0.01)), stream=True)
    await call.until(2)
    assert call.status == 200
    assert call.headers["openai-model"] == "fake-model:1"
    assert call.body == b": keep-alive\n\n"
    ready.set()
    await call.done()
    assert events(call.body)[-1] == "[DONE]"


@in_loop
async def test_no_comment_is_sent_before_the_request_is_accepted() -> None:
    backend = FakeBackend()
    backend.admission = asyncio.Event()
    call = completion(App(backend, settings(keep_alive=0.001)), stream=True)
    await asyncio.sleep(0.02)
    assert call.sent == []
    backend.error_to_raise = None
    backend.admission.set()
    await call.done()
    assert call.status == 200


@in_loop
async def test_a_json_response_gets_no_comments() -> None:
    ready = asyncio.Event()
    call = completion(App(FakeBackend(ready, *STORY), settings(keep_alive=0.001)))
    await asyncio.sleep(0.02)
    assert call.sent == []
    ready.set()
    await call.done()
    assert call.json["choices"][0]["text"] == " there was a fox"


@in_loop
async def test_keep_alive_zero_means_no_comments() -> None:
    rest = asyncio.Event()
    backend = FakeBackend(delta("a"), rest, delta("b", finish="length"))
    call = completion(App(backend, settings(keep_alive=0.0)), stream=True)
    await call.until(2)
    await asyncio.sleep(0.02)
    rest.set()
    await call.done()
    assert None not in events(call.body)


@in_loop
async def test_a_stream_that_the_backend_ends_gets_an_error_event() -> None:
    backend = FakeBackend(delta("a"), asyncio.Event())
    call = completion(App(backend, settings()), stream=True)
    await call.until(2)
    await backend.aclose()
    await call.done()
    assert events(call.body)[-1]["error"]["message"] == EngineStopped.DEFAULT_MESSAGE
