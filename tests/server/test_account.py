"""What is computed, delivered and billed: a test for each row of the table in docs/how-to/usage.md."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import select

from onward.completions.filters import ContentFilters, make_filters
from onward.engine.events import Decoded, Event, Failed, Prefilled
from onward.engine.job import Job
from onward.model_files.toy import END
from onward.server.app import App
from onward.server.exchange import HttpExchange
from onward.service.limits import Limits
from onward.service.spool_file import read_entries
from onward.service.tables import REQUESTS
from onward.service.team import Team
from onward.values import ContentFilterSetting
from tests.backends.scripted_engine import Script, ScriptedEngine, backend_over, decoding, replaying, sampled
from tests.server.fakes import Call, completion, in_loop, settings, skip
from tests.server.streams.resumable import id_of, resumable, resume
from tests.service.databases import store_with
from tests.waiting import PATIENCE_SECONDS, until

PROMPT_TOKENS = 2
AUTHORIZATION = {"authorization": "Bearer sk-alice"}


class Counts(NamedTuple):
    """The expected values of a row, except the prompt's tokens."""

    status: int
    computed: int
    delivered: int
    billed: int
    finish_reasons: str = "length"


class Served:
    """An application over a scripted engine, with a ledger."""

    def __init__(self, app: App, team: Team, rows: Callable[[], list[Any]]) -> None:
        self.app = app
        self.team = team
        self._rows = rows

    async def row(self) -> Any:
        """The only row, once it is written."""
        await until(lambda: self._rows() and not self.team._spool.num_waiting)
        (row,) = self._rows()
        return row

    async def counts(self) -> Counts:
        row = await self.row()
        assert row.prompt_tokens == (PROMPT_TOKENS if row.status < 500 else 0)
        return Counts(row.status, row.computed_tokens, row.delivered_tokens, row.completion_tokens, row.finish_reasons)

    def ask(self, **fields: Any) -> Call:
        return completion(
            self.app, headers=AUTHORIZATION, **{"model": "toy", "prompt": "ab", "ignore_eos": False, **fields}
        )


def serving(
    folder: Path,
    script: Script,
    test: Callable[[Served], Coroutine[Any, Any, None]],
    filters: ContentFilters | None = None,
) -> None:
    with store_with(folder, alice={"limits": Limits(tokens_per_day=10_000)}) as store:

        def rows() -> list[Any]:
            with store.read() as connection:
                return list(connection.execute(select(REQUESTS)))

        @in_loop
        async def run() -> None:
            backend = backend_over(ScriptedEngine(script), filters)
            with closing(Team(store, folder)) as team:
                async with aclosing(backend):
                    await test(Served(App(backend, settings(), team=team), team, rows))

        run()


def tokens(text: str) -> list[Any]:
    return [sampled(byte) for byte in text.encode()]


def check(folder: Path, script: Script, expected: Counts, filters: ContentFilters | None = None, **fields: Any) -> None:
    """Check the row of one request, and that it has what the client saw as usage."""

    async def test(served: Served) -> None:
        call = await served.ask(**fields).done()
        assert await served.counts() == expected
        if call.status == 200 and not fields.get("stream"):
            assert call.json["usage"]["completion_tokens"] == expected.billed

    serving(folder, script, test, filters)


def test_every_token_of_an_ordinary_answer_is_billed(tmp_path: Path) -> None:
    check(tmp_path, decoding("abcde"), Counts(200, 5, 5, 5), max_tokens=5)


def test_an_end_token_is_computed_but_not_billed(tmp_path: Path) -> None:
    check(tmp_path, replaying(tokens("abc"), [sampled(END)]), Counts(200, 4, 3, 3, "stop"))


def test_an_echo_without_generation_bills_no_tokens(tmp_path: Path) -> None:
    def script(job: Job) -> Iterator[list[Event]]:
        yield [Prefilled(job.id, 0)]
        yield [Decoded(job.id, 0, [], "length")]

    check(tmp_path, script, Counts(200, 0, 0, 0), max_tokens=0, echo=True)


def test_a_stop_string_and_what_follows_it_are_computed_but_not_billed(tmp_path: Path) -> None:
    for stream in (False, True):
        folder = tmp_path / str(stream)
        folder.mkdir()
        check(folder, replaying(tokens("abcdef")), Counts(200, 6, 2, 2, "stop"), stop=["cd"], stream=stream)


def test_what_a_filter_withholds_is_computed_but_not_billed(tmp_path: Path) -> None:
    filters = make_filters([ContentFilterSetting("words", ("cd",))])
    check(tmp_path, replaying(tokens("ab cd ef gh")), Counts(200, 11, 3, 5, "content_filter"), filters)


def test_discarded_candidates_are_billed_but_not_delivered(tmp_path: Path) -> None:
    check(tmp_path, decoding("abcd", "efgh"), Counts(200, 8, 4, 8, "length"), max_tokens=4, best_of=2, n=1)


def test_choices_of_an_answer_all_count(tmp_path: Path) -> None:
    check(tmp_path, decoding("abcd", "efgh"), Counts(200, 8, 8, 8, "length,length"), max_tokens=4, n=2, stream=True)


def test_accepted_drafts_are_tokens_and_rejected_ones_are_not(tmp_path: Path) -> None:
    def script(job: Job) -> Iterator[list[Event]]:
        yield [Prefilled(job.id, 0)]
        yield [Decoded(job.id, 0, tokens("abc"), "length", 2, 5)]

    check(
        tmp_path,
        script,
        Counts(200, 3, 3, 3),
        max_tokens=3,
        temperature=0,
        prediction={"type": "content", "content": "abc"},
    )


def failing(*texts: str) -> Script:
    """A script that decodes these texts, a step each, after which its job fails as one that ends engines."""

    def script(job: Job) -> Iterator[list[Event]]:
        yield [Prefilled(job.id, 0)]
        for text in texts:
            yield [Decoded(job.id, 0, tokens(text))]
        yield [Failed(job.id, "poisoned", "")]

    return script


def test_an_error_instead_of_an_answer_bills_nothing(tmp_path: Path) -> None:
    check(tmp_path, failing("ab"), Counts(500, 2, 0, 0, ""))


def test_a_stream_that_ends_with_an_error_bills_what_was_sent(tmp_path: Path) -> None:
    check(tmp_path, failing("ab", "c"), Counts(200, 3, 3, 3, ""), stream=True)


class Gate:
    """A script that decodes some tokens, a step each, and the others once it is opened."""

    def __init__(self, before: str, after: str) -> None:
        self._before = before
        self._after = after
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def __call__(self, job: Job) -> Iterator[list[Event]]:
        yield [Prefilled(job.id, 0)]
        for letter in self._before:
            yield [Decoded(job.id, 0, tokens(letter))]
        self._opened.wait(PATIENCE_SECONDS)
        for number, letter in enumerate(self._after, 1):
            yield [Decoded(job.id, 0, tokens(letter), "length" if number == len(self._after) else None)]


def test_a_stream_is_billed_until_its_client_leaves(tmp_path: Path) -> None:
    gate = Gate("abc", "defg")

    async def test(served: Served) -> None:
        call = served.ask(stream=True, max_tokens=7)
        await call.until(4)
        call.leave()
        await call.done()
        assert await served.counts() == Counts(200, 3, 3, 3, "")
        gate.open()

    serving(tmp_path, gate, test)


def test_what_may_be_a_stop_string_is_not_billed_if_its_client_leaves_before_that_is_known(tmp_path: Path) -> None:
    gate = Gate("abcd", "xefg")

    async def test(served: Served) -> None:
        call = served.ask(stream=True, max_tokens=8, stop="cdx")
        await until(lambda: _generated(served, 4, of=5))
        await call.until(3)
        call.leave()
        await call.done()
        assert await served.counts() == Counts(200, 4, 2, 2, "")
        gate.open()

    serving(tmp_path, gate, test)


def left_by(served: Served) -> Any:
    """The row that the next server would find if this one were killed now."""
    (entry,) = read_entries(served.team._spool._file.path)
    return entry.row


def test_what_a_killed_server_has_delivered_is_in_its_spool_100_ms_later(tmp_path: Path) -> None:
    gate = Gate("abc", "defg")

    async def test(served: Served) -> None:
        call = served.ask(stream=True, max_tokens=7)
        await call.until(4)
        await skip(0.06)
        row = left_by(served)
        assert (row.status, row.delivered_tokens, row.completion_tokens) == (200, 3, 3)
        gate.open()
        await call.done()

    serving(tmp_path, gate, test)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_client_has_seen_the_end_of_is_billed_whatever_is_killed_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    found: list[tuple[int, int]] = []

    async def test(served: Served) -> None:
        def before(send: Callable[..., Any]) -> Callable[..., Any]:
            def look(*given: Any) -> Any:
                found.append((left_by(served).prompt_tokens, left_by(served).completion_tokens))
                return send(*given)

            return look

        for name in ("respond", "end_response"):
            monkeypatch.setattr(HttpExchange, name, before(getattr(HttpExchange, name)))
        call = await served.ask(stream=stream, max_tokens=5).done()
        assert call.status == 200

    serving(tmp_path, decoding("abcde"), test)
    assert found[0] == (PROMPT_TOKENS, 5)


def test_a_whole_answer_whose_client_leaves_is_billed_as_far_as_it_was_generated(tmp_path: Path) -> None:
    gate = Gate("abc", "defg")

    async def test(served: Served) -> None:
        call = served.ask(max_tokens=7)
        await until(lambda: _generated(served, 3))
        call.leave()
        await call.done()
        assert await served.counts() == Counts(499, 3, 0, 3, "")
        gate.open()

    serving(tmp_path, gate, test)


def _generated(served: Served, count: int, of: int = 4) -> bool:
    """Whether so many tokens were generated: of those that are billed (4), or computed (5)."""
    entries = served.team._spool._entries.values()
    return any(entry.progress is not None and int(entry.progress()[of]) >= count for entry in entries)


def test_a_resumed_stream_delivers_each_token_once_even_after_its_end(tmp_path: Path) -> None:
    gate = Gate("abc", "defg")

    async def test(served: Served) -> None:
        fields = {"model": "toy", "prompt": "ab", "max_tokens": 7, "ignore_eos": False}
        first = resumable(served.app, headers=AUTHORIZATION, **fields)
        await until(lambda: b'"c"' in first.body)
        first.leave()
        await first.done()
        gate.open()
        assert await served.counts() == Counts(200, 7, 3, 7)
        for after in (1, 3):
            second = await resume(served.app, id_of(first), after, **AUTHORIZATION).done()
            assert second.status == 200
            while (await served.row()).delivered_tokens < 7:
                await asyncio.sleep(0.002)
        assert await served.counts() == Counts(200, 7, 7, 7)
        with_usage = served.team._usages
        assert {usage.day_tokens for usage in with_usage.values()} == {PROMPT_TOKENS + 7}, "it is billed once"

    serving(tmp_path, gate, test)


def test_a_row_has_the_time_to_the_first_token(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        await served.ask(max_tokens=3).done()
        row = await served.row()
        assert 0 <= row.first_token_ms <= row.ended_ms - row.started_ms + 1

    serving(tmp_path, decoding("abc"), test)
