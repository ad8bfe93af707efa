"""Several addresses of one model: where jobs go, also when an address is lost or answers with errors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.engines.upstreams import pool
from onward.engines.upstreams.engine import UpstreamEngine
from onward.errors import EngineStopped, ServerError, SetupError
from onward.server.metrics import Metrics
from onward.settings import Settings
from tests.engines.upstreams.harness import PROMPT, complete, give_up, on, settings, spell
from tests.engines.upstreams.standin import StandIn, stand_in
from tests.engines.upstreams.test_http import needs_openssl, self_signed
from tests.waiting import PATIENCE_SECONDS, until, wait_for

TEXT = "nothing is lost or doubled"


@pytest.fixture
def servers() -> Iterator[list[StandIn]]:
    with ExitStack() as stack:
        running = [stack.enter_context(stand_in("vllm")) for _ in range(3)]
        for server in running:
            spell(server, TEXT)
        yield running


async def home(backend: EmbeddedBackend, servers: list[StandIn]) -> StandIn:
    """Return the server that gets the next request with PROMPT, because it got the last."""
    for server in servers:
        server.requests.clear()
    await complete(backend, max_tokens=1)
    [found] = [server for server in servers if server.requests]
    found.requests.clear()
    return found


def detail(backend: EmbeddedBackend) -> str:
    return backend.health().models["there"].detail


def loads(backend: EmbeddedBackend) -> list[int]:
    engine = backend.served["there"].engine
    assert isinstance(engine, UpstreamEngine) and engine._pool is not None
    return [engine._pool._router.load(address.url) for address in engine._pool.addresses]


def test_streams_of_a_server_that_dies_continue_at_others(servers: list[StandIn]) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        first = await home(backend, servers)
        content, begun = TEXT.encode(), threading.Event()

        def pausing(tokens: Sequence[int]) -> int:
            if len(tokens) == len(PROMPT) + 5:
                begun.set()
                first.release.wait(PATIENCE_SECONDS)
            return content[len(tokens) - len(PROMPT)]

        first.script = pausing
        answers = [asyncio.create_task(complete(backend, max_tokens=len(TEXT), n=2)) for _ in range(3)]
        await until(begun.is_set)
        await asyncio.to_thread(first.close)
        texts = [choice.text for answer in answers for choice in (await answer).choices]
        assert texts == [TEXT] * 6
        await until(lambda: detail(backend) == "2 of 3 engines answer.")
        await until(lambda: loads(backend) == [0, 0, 0])

    on(servers, test)


@pytest.mark.parametrize("kind", ["llama", "vllm", "sglang"])
@pytest.mark.parametrize("ends", [True, False])
def test_connections_are_reused(kind: str, ends: bool) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        for _ in range(5):
            assert (await complete(backend, max_tokens=30 if ends else 3)).choices[0].text == TEXT[: 30 if ends else 3]

    with stand_in(kind) as server:
        spell(server, TEXT)
        on(server, test)
        assert len(server.requests) == 5
        for_streams = 5 if kind == "llama" else 1  # llama-server closes the connection after each stream
        assert len(server.connections) <= for_streams + 1  # one for what is asked at the start


@pytest.mark.parametrize("fault", ["half", "busy", "html", "hang", "other model"])
def test_a_choice_continues_at_another_address(
    servers: list[StandIn], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        first = await home(backend, servers)
        first.faults = [fault]
        if fault == "hang":
            give_up(monkeypatch, lambda message: message.startswith(b"POST /v1/completions ") and bool(first.faults))
        answer = await complete(backend, max_tokens=40, logprobs=1)
        [choice] = answer.choices
        assert (choice.text, choice.finish_reason) == (TEXT, "stop")
        assert answer.usage is not None and answer.usage.completion_tokens == len(TEXT)
        again = [request["max_tokens"] for server in servers if server is not first for request in server.requests]
        assert again == [38 if fault == "half" else 40]
        assert backend.load()["there"].num_moved == 1
        await until(lambda: loads(backend) == [0, 0, 0])

    on(servers, test)


def test_a_refused_request_is_not_sent_to_another_address(servers: list[StandIn]) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        first = await home(backend, servers)
        first.faults = ["refuse"]
        with pytest.raises(ServerError):
            await complete(backend, max_tokens=4)
        assert sum(len(server.requests) for server in servers) == 1
        assert detail(backend) == ""

    on(servers, test)


def test_a_lost_score_is_asked_for_at_another_address(servers: list[StandIn]) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        (await home(backend, servers)).faults = ["busy"]
        [choice] = (await complete(backend, max_tokens=2, echo=True, logprobs=2)).choices
        assert choice.logprobs is not None and len(choice.logprobs.tokens) == 6

    on(servers, test)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_choice_that_waits_for_a_slot_takes_one_at_another_address(servers: list[StandIn], is_lost: bool) -> None:
    """As soon as there is one, or once its address is lost, even if the request that runs there never ends."""
    stuck, other = servers[:2]
    released = threading.Event()
    content = TEXT.encode()
    for server, event in ((stuck, stuck.release), (other, released)):

        def script(tokens: Sequence[int], event: threading.Event = event) -> int:
            event.wait(PATIENCE_SECONDS)
            return content[len(tokens) - len(PROMPT)]

        server.script = script

    async def test(backend: EmbeddedBackend) -> None:
        engine = backend.served["there"].engine
        assert isinstance(engine, UpstreamEngine) and engine._pool is not None
        answers = [asyncio.create_task(complete(backend, max_tokens=3)) for _ in range(4)]
        await until(lambda: loads(backend) == [2, 2] and len(stuck.requests) == len(other.requests) == 1)
        if is_lost:
            [address] = [one for one in engine._pool.addresses if one.url == stuck.url]
            stuck.faults = ["down"] * 10_000
            engine._loop.call_soon_threadsafe(engine._pool._look_for, address, "gone")
            await until(lambda: sum(loads(backend)) == 4 and max(loads(backend)) == 3)
        released.set()
        await until(lambda: sum(answer.done() for answer in answers) == 3)
        assert (len(stuck.requests), len(other.requests)) == (1, 3)
        assert backend.load()["there"].num_moved == 0, "nothing of them had begun"
        stuck.faults.clear()
        stuck.release.set()
        assert [(await answer).choices[0].text for answer in answers] == [TEXT[:3]] * 4
        await until(lambda: loads(backend) == [0, 0])

    on([stuck, other], test, max_rows=1)


def test_all_choices_of_a_prompt_go_to_one_address_and_prompts_are_spread(servers: list[StandIn]) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        first = await home(backend, servers)
        await complete(backend, max_tokens=2, n=4)
        assert len(first.requests) == 4
        await complete(backend, prompt=[f"{number} {PROMPT * 20}" for number in range(60)], max_tokens=1)
        shares = [len(server.requests) for server in servers]
        assert sum(shares) == 64 and min(shares) >= 10
        await until(lambda: loads(backend) == [0, 0, 0])

    on(servers, test)


def test_a_prefix_returns_to_where_it_is_cached(servers: list[StandIn]) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        for subject in range(6):
            for server in servers:
                server.requests.clear()
            shared = f"{subject}" * 70
            for question in "abcd":
                await complete(backend, prompt=shared + question * 20, max_tokens=1)
            assert sorted(len(server.requests) for server in servers) == [0, 0, 4]

    on(servers, test)


def test_an_address_that_is_away_at_the_start_is_found_later(servers: list[StandIn]) -> None:
    servers[1].faults = ["down"] * 1000

    async def test(backend: EmbeddedBackend) -> None:
        assert backend.health().state == "ready"
        assert detail(backend) == "2 of 3 engines answer."
        text = Metrics(backend).render().decode()
        assert 'onward_engines{model="there"} 3.0' in text and 'onward_engines_answering{model="there"} 2.0' in text
        servers[1].faults.clear()
        await until(lambda: detail(backend) == "")

    on(servers, test)


def test_one_address_must_answer_at_the_start(servers: list[StandIn]) -> None:
    for server in servers:
        server.faults = ["down"] * 10
    with pytest.raises(SetupError, match="status 503"):
        compose(settings(*servers))


@pytest.mark.parametrize(("attribute", "value", "words"), [
    ("build", "b2", "serves another model, or another version of it, than http"),
    ("adds_space", True, "its tokenizer is not that of there"),
])  # fmt: skip
def test_an_address_with_something_else_is_refused_at_the_start(
    servers: list[StandIn], attribute: str, value: Any, words: str
) -> None:
    setattr(servers[1], attribute, value)
    with pytest.raises(SetupError, match=words):
        compose(settings(*servers))


def test_an_address_that_changes_is_left_out_until_it_is_as_before(
    servers: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LONGEST_PAUSE_SECONDS", 0.05)

    async def test(backend: EmbeddedBackend) -> None:
        first = await home(backend, servers)
        first.build, first.faults = "b2", ["half"]
        assert (await complete(backend, max_tokens=40)).choices[0].text == TEXT
        await until(lambda: detail(backend) == "2 of 3 engines answer.")
        first.requests.clear()
        await complete(backend, max_tokens=4)
        assert not first.requests
        first.build = "b1"
        await until(lambda: detail(backend) == "")

    on(servers, test)


def test_nothing_continues_when_all_addresses_have_changed(servers: list[StandIn]) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        for server in servers:
            server.build, server.faults = "b2", ["half"]
        with pytest.raises(ServerError):
            await complete(backend, max_tokens=40)
        assert backend.health().state == "dead"

    on(servers, test)


def test_an_address_that_only_fails_rests_and_is_tried_with_one_job(
    servers: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "FIRST_REST_SECONDS", 3600.0)
    monkeypatch.setattr(pool, "LONGEST_REST_SECONDS", 3600.0)

    async def test(backend: EmbeddedBackend) -> None:
        first = await home(backend, servers)
        first.faults = ["html"] * 1000
        engine = backend.served["there"].engine
        assert isinstance(engine, UpstreamEngine) and engine._pool is not None
        [address] = [one for one in engine._pool.addresses if one.url == first.url]
        for _ in range(pool.MAX_FAILURES):
            await until(lambda: address.answers)
            for other in engine._pool.addresses:  # so that it is the one with room
                other.slots.number = 256 if other is address else 0.001  # type: ignore[assignment]
            assert (await complete(backend, max_tokens=40)).choices[0].text == TEXT
        await until(lambda: address.answers)
        assert len(first.requests) == pool.MAX_FAILURES and detail(backend) == "2 of 3 engines answer."
        await complete(backend, max_tokens=4)
        assert len(first.requests) == pool.MAX_FAILURES
        address.rests_until = 0.0
        first.faults.clear()
        is_tried, content = threading.Event(), TEXT.encode()

        def pausing(tokens: Sequence[int]) -> int:
            is_tried.wait(PATIENCE_SECONDS)
            return content[len(tokens) - len(PROMPT)]

        first.script = pausing
        answer = asyncio.create_task(complete(backend, prompt=[PROMPT] * 6, max_tokens=2))
        await until(lambda: sum(loads(backend)) < 6 and len(first.requests) > pool.MAX_FAILURES)
        assert len(first.requests) == pool.MAX_FAILURES + 1
        is_tried.set()
        await answer
        await until(lambda: detail(backend) == "")

    on(servers, test)


def test_an_address_that_rests_is_better_than_none(servers: list[StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "FIRST_REST_SECONDS", 3600.0)

    async def test(backend: EmbeddedBackend) -> None:
        for server in servers:
            server.faults = ["html"] * 1000
        for _ in range(9):
            with pytest.raises(ServerError):
                await complete(backend, max_tokens=4)
        for server in servers:
            server.faults.clear()
        assert (await complete(backend, max_tokens=40)).choices[0].text == TEXT

    on(servers, test)


def test_requests_are_refused_while_none_answers(servers: list[StandIn]) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        for server in servers:
            server.faults = ["down"] * 1000
        with pytest.raises(EngineStopped):
            await complete(backend, max_tokens=4)
        assert backend.health().state == "recovering"
        servers[2].faults.clear()
        await until(lambda: backend.health().state == "ready")
        assert (await complete(backend, max_tokens=40)).choices[0].text == TEXT

    on(servers, test, engine_wait=0.0)


def test_addresses_where_nobody_listens_do_not_count_as_attempts(servers: list[StandIn]) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        for server in [*more, *servers[:-1]]:
            server.close()
        texts = [choice.text for choice in (await complete(backend, prompt=[PROMPT] * 9, max_tokens=40)).choices]
        assert texts == [TEXT] * 9

    with ExitStack() as stack:
        more = [stack.enter_context(stand_in("vllm")) for _ in range(3)]
        on([*more, *servers], test)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (("x=vllm+http://h:1", "x=vllm+http://h:1/"), "x has the address http://h:1 twice"),
        (("x=vllm+http://h:1", "x=sglang+http://h:2"), "x has addresses of vLLM and SGLang"),
        (("x=vllm+http://h:1,http://h:2",), "pass --model x=… once for each of several addresses"),
    ],
)
def test_addresses_that_do_not_go_together_are_refused(models: tuple[str, ...], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        compose(Settings(model=models))


@needs_openssl
def test_certificates_are_in_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while requests wait for a server whose new certificate is not trusted."""
    certificate, tls = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    other = tmp_path / "other"
    other.mkdir()
    _, untrusted = self_signed(other)
    expiry, refused = "onward_engine_certificate_expiry_timestamp_seconds", "onward_engine_certificate_refused"

    with ExitStack() as stack:
        server = stack.enter_context(stand_in("vllm", tls))
        model = server.url.replace("https://", "there=vllm+https://")
        backend = compose(Settings(model=(model,), tokenizer=(("there", "toy"),)))
        stack.callback(backend.close)
        metrics, place = Metrics(backend).registry, {"model": "there", "address": server.url}
        expires = metrics.get_sample_value(expiry, place)
        assert expires is not None and time.time() + 86_400 < expires <= time.time() + 2 * 86_400
        assert not backend.load()["there"].certificates[0].problem
        port = server.url.rpartition(":")[2]
        server.close()
        stack.enter_context(stand_in("vllm", untrusted, int(port)))
        engine = backend.served["there"].engine
        assert isinstance(engine, UpstreamEngine) and engine._pool is not None
        engine._thread.call(engine._pool.lost, "it was closed")
        wait_for(lambda: backend.load()["there"].certificates[0].problem)
        problem = backend.load()["there"].certificates[0].problem
        assert metrics.get_sample_value(refused, place | {"reason": problem}) == 1
        assert metrics.get_sample_value(expiry, place) == expires, "it was seen last"
