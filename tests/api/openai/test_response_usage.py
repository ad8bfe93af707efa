"""Usage has a true value for every detail that the current SDK knows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.served import post, toy_app
from tests.server.fakes import in_loop

BLOCK, MIN_TAIL = 32, 8


async def usage(app: Any, length: int, first: str = "a", **fields: Any) -> dict[str, Any]:
    prompt = (first + "bcdefgh" * length)[:length]
    answer = (await post(app, "/v1/completions", model="toy", prompt=prompt, max_tokens=3, **fields)).json
    found: dict[str, Any] = answer["usage"]
    return found


def written(length: int) -> int:
    """Tokens of a new prompt that the cache keeps: full blocks, and a rest of at least 8."""
    rest = length % BLOCK
    return length - rest + (rest if rest >= MIN_TAIL else 0)


@pytest.mark.parametrize("length", [1, 7, 8, 31, 32, 33, 39, 40, 64, 100])
@in_loop
async def test_a_prompt_counts_as_a_cache_write_once_and_then_as_cached(length: int) -> None:
    async with toy_app() as app:
        first, again = await usage(app, length), await usage(app, length)
    assert first["prompt_tokens"] == length
    assert first["prompt_tokens_details"] == {
        "cached_tokens": 0,
        "audio_tokens": 0,
        "text_tokens": length,
        "image_tokens": 0,
        "cache_write_tokens": written(length),
    }
    details = again["prompt_tokens_details"]
    assert details["cache_write_tokens"] == 0
    assert 0 <= details["cached_tokens"] <= written(length)


@in_loop
async def test_cache_writes_count_the_tokens_that_a_longer_prompt_adds_once_for_all_choices() -> None:
    async with toy_app() as app:
        await usage(app, 64)
        longer = (await usage(app, 104))["prompt_tokens_details"]
        several = await usage(app, 40, "z", n=3)
    assert (longer["cached_tokens"], longer["cache_write_tokens"]) == (64, 40)
    assert several["prompt_tokens_details"]["cache_write_tokens"] == 40
    assert several["completion_tokens_details"]["text_tokens"] == several["completion_tokens"] == 9


@in_loop
async def test_every_detail_of_the_sdk_is_stated() -> None:
    from openai.types.completion_usage import CompletionUsage  # imported here because it takes a second

    async with toy_app() as app:
        found = CompletionUsage.model_validate(await usage(app, 20))
    for details in (found.prompt_tokens_details, found.completion_tokens_details):
        assert details is not None
        assert all(value is not None for value in details.model_dump().values())
