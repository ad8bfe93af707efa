"""Laws 1 to 4 and 6 through the backend, on the toy model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from onward.api.openai.decode import check_request
from onward.api.openai.reply import FoldedChoices, fold_whole
from onward.api.openai.response import Chunk, Completion
from onward.backends.embedded import EmbeddedBackend
from onward.errors import EngineStopped, ServerError
from onward.model_files.toy import ToyTokenizer
from onward.text.decoding import Utf8Decoder
from tests.engine.harness import slow_down
from tests.examples import slow_but
from tests.narrowing import logprobs_of, usage_of
from tests.toy_backend import ask, ask_stream, complete, make_backend, on_toy, running, stream, toy_engine
from tests.waiting import until

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "once upon a time"},
    "greedy": {"prompt": "once upon a time", "temperature": 0},
    "no prompt": {},
    "token array": {"prompt": [104, 105, 32]},
    "batch": {"prompt": ["a fox", "a bear", "the end"], "n": 2},
    "batch of token arrays": {"prompt": [[104, 105], [97] * 70], "max_tokens": 5},
    "logprobs": {"prompt": "the cat", "logprobs": 3},
    "logprobs 0": {"prompt": "the cat", "logprobs": 0},
    "echo": {"prompt": "the cat 🙂", "echo": True},
    "echo and logprobs": {"prompt": "the naïve cat 🙂", "echo": True, "logprobs": 2, "n": 2},
    "scoring": {"prompt": "the naïve cat 🙂", "echo": True, "logprobs": 2, "max_tokens": 0},
    "stop": {"prompt": "the cat", "stop": ["a", "e"], "logprobs": 1, "max_tokens": 60},
    "stop, echo and logprobs": {"prompt": "the", "stop": "a", "echo": True, "logprobs": 1, "max_tokens": 60},
    "stop shown": {"prompt": "the cat", "stop": "a", "include_stop_str_in_output": True, "max_tokens": 60},
    "ends early": {"prompt": "x", "logit_bias": {"256": 8}, "max_tokens": 60, "logprobs": 1, "echo": True},
    "best_of": {"prompt": ["the cat", "a"], "n": 2, "logprobs": 1, "max_tokens": 9},
    "suffix": {"prompt": "the cat", "suffix": "the mat", "max_tokens": 9},
    "penalties": {"prompt": "aaa", "frequency_penalty": 1.5, "presence_penalty": -0.5, "repetition_penalty": 1.2},
    "ids": {"prompt": "the cat", "logprobs": 2, "return_tokens_as_token_ids": True, "echo": True},
    "specials": {"prompt": "x", "logit_bias": {"257": 100}, "skip_special_tokens": False, "max_tokens": 3},
    "bytes": {"prompt": "x", "logit_bias": {"240": 21, "159": 21}, "max_tokens": 40, "logprobs": 1},
    "nothing requested": {"prompt": "the cat", "max_tokens": 0},
}


def folded(chunks: list[Chunk]) -> list[dict[str, Any]]:
    whole = FoldedChoices()
    for chunk in chunks:
        whole.add(chunk.choices)
    return [choice.to_dict() for choice in whole.choices()]


def comparable(completion: Completion) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return [choice.to_dict() for choice in completion.choices], completion.usage.to_dict()


@pytest.mark.parametrize("shape", SHAPES)
def test_law_1_folded_chunks_equal_the_completion(shape: str) -> None:
    async def both(backend: EmbeddedBackend) -> tuple[Completion, list[Chunk]]:
        fields = {"seed": 11, **SHAPES[shape]}
        whole = await complete(backend, **fields)
        chunks = await stream(backend, **fields, stream_options={"include_usage": True})
        return whole, chunks

    whole, chunks = on_toy(both)
    assert folded(chunks) == comparable(whole)[0]
    streamed, counted = usage_of(chunks[-1]).to_dict(), whole.usage.to_dict()
    streamed.pop("prompt_tokens_details"), counted.pop("prompt_tokens_details")
    assert streamed == counted


@pytest.mark.parametrize("shape", SHAPES)
def test_law_1_every_index_ends_once_and_nothing_follows(shape: str) -> None:
    ended: set[int] = set()
    chunks = ask_stream(seed=5, **SHAPES[shape])
    for chunk in chunks:
        (choice,) = chunk.choices
        assert choice.index not in ended
        if choice.finish_reason:
            ended.add(choice.index)
    prompts = SHAPES[shape].get("prompt", "")
    batch = len(prompts) if isinstance(prompts, list) and not isinstance(prompts[0], int) else 1
    assert ended == set(range(batch * SHAPES[shape].get("n", 1)))


@pytest.mark.parametrize("shape", slow_but([*SHAPES][::6], SHAPES))
def test_law_2_a_seeded_request_returns_the_same_bytes_among_32_others(shape: str) -> None:
    fields = {"seed": 3, **SHAPES[shape]}

    async def crowded(backend: EmbeddedBackend) -> tuple[Completion, Completion]:
        noise = [
            complete(backend, prompt="noise " * (number % 9 + 1), n=number % 3 + 1, max_tokens=30)
            for number in range(32)
        ]
        results = await asyncio.gather(complete(backend, **fields), *noise, complete(backend, **fields))
        return results[0], results[-1]

    alone = ask(**fields)
    first, last = on_toy(crowded)
    for other in (first, last):
        assert comparable(other)[0] == comparable(alone)[0]
        assert other.usage.completion_tokens == alone.usage.completion_tokens


@pytest.mark.parametrize("shape", SHAPES)
def test_law_2_the_seed_that_was_drawn_computes_an_answer_again(shape: str) -> None:
    """With any number of prompts, choices and candidates; for one prompt it is the same as naming it as `seed`."""
    fields = {"temperature": 1, "max_tokens": 20, **SHAPES[shape]}

    async def again(backend: EmbeddedBackend) -> tuple[Completion, Completion, Completion]:
        drawn = check_request({"model": "toy", **fields})
        answer = await backend.complete(drawn)
        same = check_request({"model": "toy", **fields})
        assert same.random_seed != drawn.random_seed == answer.seed
        same = structs.replace(same, random_seed=answer.seed)
        return (
            await fold_whole(answer, drawn),
            await fold_whole(await backend.complete(same), same),
            await complete(backend, **fields, seed=answer.seed),
        )

    first, second, named = on_toy(again)
    assert comparable(second)[0] == comparable(first)[0]
    if len(check_request({"model": "toy", **fields}).prompts) == 1:
        assert comparable(named)[0] == comparable(first)[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_law_3_a_repeated_request_returns_the_same(shape: str) -> None:
    fields = {"seed": 3, **SHAPES[shape]}

    async def twice(backend: EmbeddedBackend) -> tuple[Completion, Completion]:
        return await complete(backend, **fields), await complete(backend, **fields)

    cold, warm = on_toy(twice)
    assert comparable(warm)[0] == comparable(cold)[0]


def test_law_3_cached_tokens_are_reported() -> None:
    async def twice(backend: EmbeddedBackend) -> tuple[Completion, Completion]:
        prompt = "tell me a story " * 20
        return await complete(backend, prompt=prompt), await complete(backend, prompt=prompt)

    cold, warm = on_toy(twice)
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    cached = warm.usage.prompt_tokens_details.cached_tokens
    assert cached == warm.usage.prompt_tokens - 2 > 0, "the last two are computed again"


def test_law_4_a_disconnect_stops_the_request() -> None:
    async def leave(backend: EmbeddedBackend) -> None:
        answer = await backend.complete(
            check_request({"model": "toy", "prompt": "x", "max_tokens": 1900, "ignore_eos": True, "n": 4})
        )
        async for _ in answer:
            break
        await answer.aclose()
        before = toy_engine(backend).counters.num_steps
        await asyncio.sleep(0.05)
        assert toy_engine(backend).counters.num_steps <= before + 2

    on_toy(leave)


def test_law_4_a_crashed_engine_fails_running_and_new_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the runtime broke")

    async def die() -> None:
        backend = make_backend()

        monkeypatch.setattr(toy_engine(backend).model, "evaluate", broken)
        with pytest.raises(ServerError):
            await complete(backend, prompt="x")
        with pytest.raises(EngineStopped):
            await complete(backend, prompt="y")
        assert backend.health().state == "dead"
        await backend.aclose()

    asyncio.run(die())


def test_law_4_closing_fails_running_requests() -> None:
    async def close() -> None:
        backend = make_backend()
        slow_down(toy_engine(backend))
        task = asyncio.create_task(complete(backend, prompt="x", max_tokens=2000, ignore_eos=True))
        await until(lambda: toy_engine(backend).counters.num_steps)
        await backend.aclose()
        with pytest.raises(EngineStopped):
            await task

    asyncio.run(close())


@pytest.mark.parametrize(
    "shape", [name for name, fields in SHAPES.items() if "logprobs" in fields and name not in ("ids", "best_of")]
)
def test_law_6_tokens_join_to_the_text_and_offsets_are_in_code_points(shape: str) -> None:
    fields = {"seed": 9, **SHAPES[shape]}
    prompts = fields["prompt"] if isinstance(fields["prompt"], list) else [fields["prompt"]]
    completion = ask(**fields)
    for choice in completion.choices:
        prompt = prompts[choice.index // fields.get("n", 1)]
        base = 0 if fields.get("echo") else len(prompt)
        logprobs = logprobs_of(choice)
        shown = b""
        for name, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
            token_bytes = ToyTokenizer().token_bytes(_id_of(name))
            begun = len((shown + token_bytes[:1]).decode(errors="replace"))
            assert offset == base + min(begun - 1, len(choice.text))
            shown += token_bytes
        spelled = Utf8Decoder().feed(shown).replace("<|endoftext|>", "")
        assert spelled.startswith(choice.text)


def _id_of(name: str) -> int:
    if name.startswith("bytes:"):
        data = name.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")
        return data[0]
    found = ToyTokenizer().token_id(name)
    return ord(name) if found is None else found


def test_a_split_character_never_becomes_a_replacement_character() -> None:
    async def many(backend: EmbeddedBackend) -> list[Completion]:
        return await asyncio.gather(
            *(
                complete(backend, prompt="x", seed=seed, max_tokens=30, logit_bias={"266": 9, "267": 9})
                for seed in range(20)
            )
        )

    for completion in on_toy(many):
        assert "�" not in completion.choices[0].text


def test_a_closed_backend_rejects_requests() -> None:
    async def closed() -> None:
        async with running(make_backend()) as backend:
            assert (await complete(backend, prompt="x")).choices
        with pytest.raises(EngineStopped):
            await complete(backend, prompt="x")

    asyncio.run(closed())
