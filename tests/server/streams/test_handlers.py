"""Streams that are kept: a client whose connection is lost resumes, and misses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onward.errors import InvalidRequest
from onward.server.app import App
from onward.server.keys import collect_keys
from tests.server.fakes import STORY, Call, FakeBackend, Step, completion, delta, events, in_loop, settings, skip
from tests.server.streams.resumable import id_of, numbered, resumable, resume
from tests.waiting import until


def paused(*script: Step) -> tuple[App, FakeBackend, asyncio.Event]:
    """An application whose answers wait after their first delta until the event is set."""
    go = asyncio.Event()
    backend = FakeBackend(delta("a"), go, *(script or (delta("b"), delta("c", finish="length"))))
    return App(backend, settings()), backend, go


async def lost(app: App) -> Call:
    """A stream whose connection is lost after its first event."""
    call = resumable(app)
    await call.until(2)
    call.leave()
    return await call.done()


@in_loop
async def test_without_the_option_nothing_changes_on_the_wire() -> None:
    call = await completion(App(FakeBackend(), settings()), stream=True).done()
    assert len(events(call.body)) == 4  # fails if there are ids: it accepts data lines only
    assert "preference-applied" not in call.headers


@in_loop
async def test_each_event_has_an_id() -> None:
    call = await resumable(App(FakeBackend(), settings())).done()
    assert [number for number, _ in numbered(call.body)] == [1, 2, 3, 4]
    assert numbered(call.body)[-1][1] == "[DONE]"


@in_loop
async def test_a_lost_stream_continues_and_its_rest_is_the_same_bytes() -> None:
    app, backend, go = paused()
    first = await lost(app)
    assert not backend.answers[0].closed.is_set()
    go.set()
    await app.wait_until_idle()
    rest = await resume(app, id_of(first), after=1).done()
    whole = await resume(app, id_of(first)).done()
    assert first.body + rest.body == whole.body
    assert [number for number, _ in numbered(whole.body)] == [1, 2, 3, 4]
    assert rest.headers["content-type"] == "text/event-stream"
    assert rest.headers["openai-model"] == "fake-model:1"


@in_loop
async def test_a_resumed_stream_says_again_which_seed_was_drawn() -> None:
    app = App(FakeBackend(), settings())
    first = await resumable(app).done()
    id, drawn = id_of(first), first.headers["onward-seed"]
    whole = await resume(app, id, accept="application/json").done()
    head = await Call(app, "HEAD", f"/v1/completions/{id}", b"").done()
    for again in (await resume(app, id, after=1).done(), whole, head):
        assert (again.status, again.headers["onward-seed"]) == (200, drawn)
    named = await resumable(app, seed=7).done()
    assert "onward-seed" not in named.headers | (await resume(app, id_of(named)).done()).headers


@in_loop
async def test_a_client_that_resumes_receives_later_events_too() -> None:
    app, _, go = paused()
    first = await lost(app)
    rest = resume(app, id_of(first), after=1)
    await asyncio.sleep(0)
    assert rest.sent == []
    go.set()
    await rest.done()
    assert [number for number, _ in numbered(rest.body)] == [2, 3, 4]


@in_loop
async def test_a_stream_is_resumed_again_and_again() -> None:
    gates = [asyncio.Event() for _ in range(5)]
    script: list[Step] = [step for gate in gates for step in (delta("x"), gate)]
    app = App(FakeBackend(*script, delta("end", finish="length")), settings())
    call = await lost(app)
    body, id = call.body, id_of(call)
    for number, gate in enumerate(gates[:-1], start=1):
        call = resume(app, id, after=number)
        gate.set()
        await call.until(2)
        call.leave()
        body += (await call.done()).body
    gates[-1].set()
    body += (await resume(app, id, after=5).done()).body
    assert body == (await resume(app, id).done()).body
    assert [number for number, _ in numbered(body)] == list(range(1, 8))


@in_loop
async def test_the_prefer_header_asks_for_the_same_and_is_answered() -> None:
    app = App(FakeBackend(), settings(resume_window=30.0))
    call = await completion(app, stream=True, headers={"prefer": "respond-async, Resumable; x=1"}).done()
    assert numbered(call.body)[-1] == (4, "[DONE]")
    assert call.headers["preference-applied"] == "resumable; window=30"
    assert (await resume(app, id_of(call)).done()).body == call.body


@in_loop
async def test_the_prefer_header_has_no_effect_on_a_whole_answer() -> None:
    app = App(FakeBackend(), settings())
    call = await completion(app, headers={"prefer": "resumable"}).done()
    assert (await resume(app, call.json["id"]).done()).status == 404


@in_loop
async def test_a_server_without_a_window_refuses_the_option_and_ignores_the_preference() -> None:
    app = App(FakeBackend(), settings(resume_window=0.0))
    refused = await resumable(app).done()
    assert (refused.status, refused.error["param"]) == (400, "stream_options.resumable")
    ignored = await completion(app, stream=True, headers={"prefer": "resumable"}).done()
    assert "preference-applied" not in ignored.headers
    assert len(events(ignored.body)) == 4


@in_loop
async def test_the_whole_answer_is_the_fold_of_the_stream() -> None:
    app, _, go = paused()
    first = await lost(app)
    whole = resume(app, id_of(first), accept="application/json")
    await asyncio.sleep(0)
    go.set()
    found = (await whole.done()).json
    plain = (await completion(app).done()).json
    assert found["id"] == id_of(first)
    assert {**found, "id": "", "created": 0} == {**plain, "id": "", "created": 0}
    assert [*found] == [*plain]


@in_loop
async def test_nothing_is_left_of_a_stream_that_was_read() -> None:
    app = App(FakeBackend(), settings())
    call = await resumable(app).done()
    again = await resume(app, id_of(call), after=4).done()
    assert (again.status, again.body) == (204, b"")


@pytest.mark.parametrize("after", ["5", "-1", "x", "1.0", "9" * 40, "²"])
@in_loop
async def test_an_event_that_was_never_sent_is_refused(after: str) -> None:
    app = App(FakeBackend(), settings())
    id = id_of(await resumable(app).done())
    call = Call(app, "GET", f"/v1/completions/{id}", b"", last_event_id=after)
    assert (await call.done()).status == 400
    assert "1 to 4" in call.error["message"]


@in_loop
async def test_an_unknown_stream_is_not_found() -> None:
    call = await resume(App(FakeBackend(), settings()), "cmpl-unknown").done()
    assert call.status == 404
    assert "cmpl-unknown" in call.error["message"] and "--resume-window" in call.error["message"]


@in_loop
async def test_only_the_same_key_may_resume() -> None:
    app = App(FakeBackend(), settings(api_key=("sk-a", "sk-b")))
    a, b = ({"authorization": f"Bearer sk-{key}"} for key in "ab")
    id = id_of(await resumable(app, headers=a).done())
    assert (await resume(app, id, None, **b).done()).status == 404
    assert (await resume(app, id).done()).status == 401
    assert (await resume(app, id, None, **a).done()).status == 200


@in_loop
async def test_a_new_key_with_an_old_ones_name_does_not_read_its_streams(tmp_path: Path) -> None:
    files = [tmp_path / "old", tmp_path / "new"]
    for file, line in zip(files, ("alice = sk-old", "alice = sk-new"), strict=True):
        file.write_text(line, encoding="utf-8")
        file.chmod(0o600)
    app = App(FakeBackend(), settings(api_key_file=files[0]))
    id = id_of(await resumable(app, headers={"api-key": "sk-old"}).done())
    app.replace_keys(collect_keys(settings(api_key_file=files[1])))
    assert (await resume(app, id, None, **{"api-key": "sk-new"}).done()).status == 404
    assert (await Call(app, "DELETE", f"/v1/completions/{id}", b"", **{"api-key": "sk-new"}).done()).status == 404


@in_loop
async def test_an_error_is_the_last_event_and_is_resumed_too() -> None:
    app, backend, go = paused(InvalidRequest("No."))
    first = await lost(app)
    go.set()
    await app.wait_until_idle()
    rest = await resume(app, id_of(first), after=1).done()
    [(number, event)] = numbered(rest.body)
    assert (number, event["error"]["message"]) == (2, "No.")
    whole = await resume(app, id_of(first), accept="application/json").done()
    assert (whole.status, whole.error["message"]) == (400, "No.")
    assert backend.answers[0].closed.is_set()


@in_loop
async def test_an_error_before_the_first_event_is_the_response() -> None:
    app = App(FakeBackend(InvalidRequest("No.")), settings())
    call = await resumable(app).done()
    assert (call.status, call.error["message"]) == (400, "No.")
    assert app.num_running == 0


@in_loop
async def test_a_client_that_leaves_before_it_knows_the_id_ends_the_work() -> None:
    backend = FakeBackend(asyncio.Event(), *STORY)
    app = App(backend, settings())
    call = resumable(app)
    await until(lambda: backend.answers)
    call.leave()
    await call.done()
    await backend.answers[0].closed.wait()
    assert app.num_running == 0


@in_loop
async def test_a_client_that_has_had_nothing_but_a_comment_ends_the_work() -> None:
    backend = FakeBackend(asyncio.Event(), *STORY)
    app = App(backend, settings(keep_alive=0.01))
    call = resumable(app)
    await call.until(2)
    assert call.body.startswith(b": keep-alive")
    call.leave()
    await call.done()
    await backend.answers[0].closed.wait()
    assert app.num_running == 0


@in_loop
async def test_a_head_request_does_not_take_the_stream_over() -> None:
    app, _, go = paused()
    first = resumable(app)
    await first.until(2)
    assert (await Call(app, "HEAD", f"/v1/completions/{id_of(first)}", b"").done()).status == 200
    go.set()
    await first.done()
    assert [number for number, _ in numbered(first.body)] == [1, 2, 3, 4]


@in_loop
async def test_a_stream_for_which_nobody_comes_back_is_cancelled_after_the_window() -> None:
    backend = FakeBackend(delta("a"), asyncio.Event())
    app = App(backend, settings(resume_window=30))
    first = await lost(app)
    assert app.num_running == 1  # a drain waits for it
    await skip(30)
    await backend.answers[0].closed.wait()
    await app.wait_until_idle()
    assert (await resume(app, id_of(first)).done()).status == 404
    metrics = (await Call(app, "GET", "/metrics").done()).body.decode()
    assert "onward_streams_abandoned_total 1.0" in metrics
    assert "onward_streams_kept 0.0" in metrics
    assert "onward_streams_kept_bytes 0.0" in metrics


@in_loop
async def test_a_connection_that_resumes_stops_the_window() -> None:
    backend = FakeBackend(delta("a"), asyncio.Event())
    app = App(backend, settings(resume_window=30))
    first = await lost(app)
    rest = resume(app, id_of(first))
    await rest.until(2)
    await skip(60)
    assert not backend.answers[0].closed.is_set()
    rest.leave()
    await rest.done()
    await skip(30)
    await backend.answers[0].closed.wait()


@in_loop
async def test_delete_ends_the_work_and_the_connection() -> None:
    app, backend, _ = paused()
    first = resumable(app)
    await first.until(2)
    id = id_of(first)
    call = await Call(app, "DELETE", f"/v1/completions/{id}", b"").done()
    assert call.json == {"id": id, "object": "text_completion.deleted", "deleted": True}
    await first.done()
    assert first.ended and b'"code":"stream_cancelled"' in first.body
    await backend.answers[0].closed.wait()
    assert app.num_running == 0
    assert (await Call(app, "DELETE", f"/v1/completions/{id}", b"").done()).status == 404


@in_loop
async def test_a_new_connection_takes_over_from_one_that_is_half_open() -> None:
    app, _, go = paused()
    first = resumable(app)
    await first.until(2)
    second = resume(app, id_of(first), after=1)
    await first.done()
    assert first.ended and b'"code":"stream_cancelled"' in first.body
    go.set()
    await second.done()
    assert [number for number, _ in numbered(second.body)] == [2, 3, 4]
    assert app.num_running == 0


@in_loop
async def test_a_server_that_closes_ends_the_stream_with_an_error() -> None:
    app, backend, _ = paused()
    first = resumable(app)
    await first.until(2)
    await backend.aclose()
    await first.done()
    assert numbered(first.body)[-1][1]["error"]["type"] == "server_error"
    assert app.num_running == 0


@in_loop
async def test_keep_alive_comments_have_no_id() -> None:
    go = asyncio.Event()
    app = App(FakeBackend(delta("a"), go, delta("b", finish="length")), settings(keep_alive=0.01))
    first = await lost(app)
    rest = resume(app, id_of(first), after=1)
    await rest.until(3)
    go.set()
    await rest.done()
    assert rest.body.startswith(b": keep-alive\n\n")
    assert [number for number, _ in numbered(rest.body)] == [2, 3]


@in_loop
async def test_large_events_are_resumed_too() -> None:
    app, _, go = paused(delta("x" * 600_000), delta("", finish="length"))
    first = await lost(app)
    go.set()
    await app.wait_until_idle()
    rest = await resume(app, id_of(first), after=1).done()
    whole = await resume(app, id_of(first), accept="application/json").done()
    assert len(numbered(rest.body)[0][1]["choices"][0]["text"]) == 600_000
    assert whole.json["choices"][0]["text"] == "a" + "x" * 600_000


@in_loop
async def test_tokens_that_are_generated_without_a_connection_are_counted() -> None:
    app, _, go = paused()
    first = await lost(app)
    go.set()
    await app.wait_until_idle()
    await resume(app, id_of(first), after=1).done()
    metrics = (await Call(app, "GET", "/metrics").done()).body.decode()
    assert 'onward_completion_tokens_total{model="fake-model:1"} 3.0' in metrics
    assert "onward_streams_resumed_total 1.0" in metrics
