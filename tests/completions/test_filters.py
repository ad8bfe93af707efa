"""Content filters: flagged text is never sent, however it is split; records, counts and finish_reason agree with it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tomllib
from collections.abc import Callable, Coroutine
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.api.openai.response import Chunk
from onward.backends.embedded import EmbeddedBackend
from onward.completions.answer import Finish
from onward.completions.filters import ContentFilters, FilterStream, make_filters
from onward.completions.patterns import compile_patterns, max_match_length
from onward.completions.text_deltas import TextDelta
from onward.errors import ServerError, SetupError
from onward.text.assembler import TokenRecord
from onward.values import ContentFilterSetting, content_filter
from tests.examples import examples

from ..engine.harness import slow_down
from ..toy_backend import ask, complete, make_backend, running, settle, stream, toy_engine

PATTERNS = ("ab+c", "b{2,4}", r"\bca", r"ca\b", r"b\B", "a.c", "c(?:a|bb)b", "é🙂?", "a")
FIELDS: dict[str, Any] = {"prompt": "Say", "temperature": 0, "max_tokens": 40, "ignore_eos": True}


def setting(*patterns: str, action: str = "stop", entry_point: str | None = None) -> ContentFilterSetting:
    return ContentFilterSetting("test", patterns, entry_point, action)  # type: ignore[arg-type]


def with_filters(test: Callable[[EmbeddedBackend], Coroutine[Any, Any, Any]], *chosen: ContentFilterSetting) -> Any:
    async def run() -> Any:
        backend = make_backend()
        for model in backend.served.values():
            model.filters = make_filters(chosen)
        async with running(backend):
            return await test(backend)

    return asyncio.run(run())


def unfiltered() -> str:
    return ask(**FIELDS).choices[0].text


# --- filter streams, on any text split at any places -------------------------------------------------------


def filtered(filters: ContentFilters, text: str, cuts: list[int]) -> list[TextDelta]:
    """Filter a text of one-character tokens, split at `cuts`."""
    stream = FilterStream(filters, base=7)
    out = []
    edges = sorted({min(cut, len(text)) for cut in cuts})
    for start, end in zip([0, *edges], [*edges, len(text)], strict=True):
        records = [TokenRecord(at, text[at].encode(), -1.0, (), 7 + at) for at in range(start, end)]
        last = end == len(text) and start == ([0, *edges])[-1]
        out.append(stream.feed(TextDelta(1, 0, text[start:end], records, end, Finish("length") if last else None)))
        if stream.ended:
            break
    return out


def flagged_positions(patterns: list[str], text: str) -> tuple[set[int], int]:
    """With Python's `re` on the whole text: the flagged positions, and the start of the first match."""
    spans = [match.span() for pattern in patterns for match in re.finditer(pattern, text, re.ASCII)]
    return {place for start, end in spans for place in range(start, end)}, min(spans, default=(len(text), 0))[0]


TEXTS = st.text("abcé🙂 ", max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=12)
CHOSEN = st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3, unique=True)


@settings(max_examples=examples(300))
@given(TEXTS, CUTS, CHOSEN, st.booleans())
def test_omit_removes_exactly_the_matches_however_the_text_is_split(
    text: str, cuts: list[int], patterns: list[str], apart: bool
) -> None:
    chosen = [setting(pattern, action="omit") for pattern in patterns] if apart else None
    filters = make_filters(chosen or [setting(*patterns[:1], action="omit")])
    flagged, _ = flagged_positions(patterns if apart else patterns[:1], text)
    parts = filtered(filters, text, cuts)
    kept = [place for place in range(len(text)) if place not in flagged]
    assert "".join(part.text for part in parts) == "".join(text[place] for place in kept)
    records = [record for part in parts for record in part.records]
    assert [record.token for record in records] == kept
    assert [record.offset - 7 for record in records] == list(range(len(kept)))
    assert parts[-1].finish == Finish("content_filter" if flagged else "length")
    assert parts[-1].num_completion_tokens == len(text)
    counts = [part.num_completion_tokens for part in parts]
    assert counts == sorted(counts)


def test_a_match_that_later_text_could_extend_waits_for_it() -> None:
    parts = filtered(make_filters([setting("abc|ab", action="omit")]), "xabc.", [3])
    assert "".join(part.text for part in parts) == "x."


def test_a_record_is_sent_with_its_text_when_the_next_token_has_begun() -> None:
    parts = filtered(make_filters([setting("z", action="omit")]), "abc", [1, 2])
    assert [part.text for part in parts] == ["", "a", "bc"]
    assert [[record.token for record in part.records] for part in parts] == [[], [0], [1, 2]]


@settings(max_examples=examples(300))
@given(TEXTS, CUTS, CHOSEN)
def test_stop_ends_the_text_before_the_first_match_however_it_is_split(
    text: str, cuts: list[int], patterns: list[str]
) -> None:
    filters = make_filters([setting(pattern) for pattern in patterns])
    flagged, first = flagged_positions(patterns, text)
    parts = filtered(filters, text, cuts)
    assert "".join(part.text for part in parts) == text[:first]
    assert [record.token for part in parts for record in part.records] == list(range(first))
    assert parts[-1].finish == Finish("content_filter" if flagged else "length")
    assert first <= parts[-1].num_completion_tokens <= len(text)


@settings(max_examples=examples(200))
@given(TEXTS, CUTS, CUTS, CHOSEN)
def test_the_count_of_tokens_at_a_stop_does_not_depend_on_the_split(
    text: str, cuts: list[int], others: list[int], patterns: list[str]
) -> None:
    filters = make_filters([setting(pattern) for pattern in patterns])
    ends = [filtered(filters, text, each)[-1] for each in (cuts, others)]
    assert ends[0].num_completion_tokens == ends[1].num_completion_tokens


def test_text_is_held_back_by_no_more_than_the_longest_match() -> None:
    parts = filtered(make_filters([setting("xyz")]), "a" * 20, list(range(20)))
    assert [len("".join(part.text for part in parts[: at + 1])) for at in (3, 9, 20)] == [0, 6, 20]


def test_an_unbounded_pattern_holds_the_text_back_to_its_end() -> None:
    parts = filtered(make_filters([setting("x.*z", action="omit")]), "aaxbbzcc", [2, 4, 6])
    assert [part.text for part in parts] == ["", "", "", "aacc"]


@pytest.mark.parametrize(
    ("pattern", "longest"),
    [("abc", 3), ("a{2,5}", 5), (r"\bab?\b", 2), ("a|bcd", 3), ("a+", None), ("(?i)straße", 6), (r"\pL", None)],
)
def test_the_longest_possible_match_of_a_pattern_is_known(pattern: str, longest: int | None) -> None:
    assert max_match_length(pattern) == longest


@pytest.mark.parametrize("pattern", ["a{,2}", "ab{,}", "x{02}", "a{1,02}"])
def test_braces_that_re2_takes_literally_are_found_however_the_text_is_split(pattern: str) -> None:
    """Python parses braces as a repetition, whose match is shorter than the braces themselves."""
    filters = make_filters([setting(pattern, action="omit")])
    text = f"say {pattern} twice"
    assert "".join(part.text for part in filtered(filters, text, list(range(len(text))))) == "say  twice"


@settings(max_examples=examples(500))
@given(
    st.lists(
        st.sampled_from([*"ab{,}12[]()|^?+*", "{,2}", "{02}", "{1,2}", "{1,02}", "[:alpha:]", r"\b", "(?i)"]),
        max_size=7,
    ),
    st.text("ab{,}12 ", max_size=12),
)
def test_no_match_is_longer_than_the_known_bound(parts: list[str], text: str) -> None:
    pattern = "".join(parts)
    longest = max_match_length(pattern)
    try:
        find, _ = compile_patterns("test", [pattern])
    except SetupError:
        return
    if longest is not None:
        assert all(end - start <= longest for start, end in find(text + pattern + text, 0))


@pytest.mark.parametrize(
    ("pattern", "words"), [("(", "invalid RE2"), (r"(a)\1", "invalid RE2"), ("a*", "empty string")]
)
def test_an_invalid_pattern_is_an_error_at_startup(pattern: str, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        make_filters([setting(pattern)])


def test_patterns_without_re2_are_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(SetupError, match=r"'test' has patterns, .* pip install 'onward\[filters\]'"):
        compile_patterns("test", ["a"])


def test_a_pattern_that_would_hang_a_backtracking_engine_is_harmless() -> None:
    filters = make_filters([setting(r"(?:a{1,30}){1,30}b")])
    assert not filters.flag("a" * 2000)


# --- through every layer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["stop", "omit"])
@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"n": 3, "temperature": 1, "seed": 5}, {"echo": True}])
def test_a_filtered_stream_equals_the_filtered_completion(action: str, fields: dict[str, Any]) -> None:
    flagged = re.compile("v.|y")
    asked = FIELDS | fields

    async def both(backend: EmbeddedBackend) -> None:
        whole = await complete(backend, **asked)
        chunks = await stream(backend, **asked, stream_options={"include_usage": True})
        for choice in whole.choices:
            assert joined(chunks, choice.index) == choice.text
            text = choice.text.removeprefix("Say") if fields.get("echo") else choice.text
            if action == "stop":
                assert not flagged.search(text)
            assert choice.finish_reason == "content_filter"
        assert chunks[-1].usage == whole.usage
        if "logprobs" in fields:
            logprobs = whole.choices[0].logprobs
            assert logprobs is not None and "".join(logprobs.tokens) == whole.choices[0].text
            assert logprobs.top_logprobs is not None
            assert all("y" not in top for top in logprobs.top_logprobs if top)

    with_filters(both, setting("v.|y", action=action))


def joined(chunks: list[Chunk], index: int) -> str:
    return "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == index)


def test_a_stop_ends_generation_and_counts_the_tokens_to_the_match() -> None:
    text = unfiltered()
    flagged = text[10:13]

    async def check(backend: EmbeddedBackend) -> None:
        slow_down(toy_engine(backend))
        completion = await complete(backend, **FIELDS | {"max_tokens": 1900})
        assert completion.choices[0].text == text[: text.index(flagged)]
        assert completion.usage.completion_tokens == text.index(flagged) + 3
        await settle(backend)
        assert toy_engine(backend).counters.num_decode_tokens < 1000, "generation continued after the match"

    with_filters(check, setting(re.escape(flagged)))


def test_the_prompt_is_not_filtered() -> None:
    async def check(backend: EmbeddedBackend) -> None:
        choice = (await complete(backend, **FIELDS | {"echo": True, "max_tokens": 0, "logprobs": 1})).choices[0]
        assert (choice.text, choice.finish_reason) == ("Say", "length")

    with_filters(check, setting("S.y"))


def test_candidates_are_filtered_before_the_best_are_selected() -> None:
    async def check(backend: EmbeddedBackend) -> None:
        fields = FIELDS | {"best_of": 4, "n": 2, "temperature": 1, "seed": 2}
        choices = (await complete(backend, **fields)).choices
        assert [choice.index for choice in choices] == [0, 1]
        assert all("e" not in choice.text for choice in choices)

    with_filters(check, setting("e"))


def test_the_same_request_returns_the_same_bytes() -> None:
    async def check(backend: EmbeddedBackend) -> list[str]:
        fields = FIELDS | {"temperature": 1, "seed": 3, "logprobs": 1}
        answers = await asyncio.gather(*(complete(backend, **fields) for _ in range(6)))
        return [answer.choices[0].to_json() for answer in answers]

    assert len(set(with_filters(check, setting("e.", action="omit")))) == 1


# --- callables -------------------------------------------------------------------------------------------------


class Entry:
    """Replaces an installed entry point."""

    def __init__(self, function: object) -> None:
        self._function = function

    def load(self) -> object:
        return self._function


def install(monkeypatch: pytest.MonkeyPatch, function: object) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group, name: [Entry(function)] if name == "mine" else [])


def test_a_callable_of_an_entry_point_is_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    text = unfiltered()
    install(monkeypatch, lambda found: [(3, 6)] if len(found) > 6 else [])

    async def check(backend: EmbeddedBackend) -> str:
        return (await complete(backend, **FIELDS)).choices[0].text

    assert with_filters(check, setting(entry_point="mine", action="omit")) == text[:3] + text[6:]


def test_a_callable_that_raises_fails_only_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> list[tuple[int, int]]:
        raise RuntimeError("bad filter")

    install(monkeypatch, broken)

    async def check(backend: EmbeddedBackend) -> None:
        for _ in range(2):
            with pytest.raises(ServerError):
                await complete(backend, **FIELDS)
        await settle(backend)

    with_filters(check, setting(entry_point="mine"))


def test_a_missing_entry_point_is_an_error_at_startup() -> None:
    with pytest.raises(SetupError, match=r"onward\.content_filters"):
        make_filters([setting(entry_point="nobody-has-this")])


def test_a_filter_that_flags_everything_stays_fast() -> None:
    """Text that has been decided on is not kept: the time per token does not grow with the text."""
    stream = FilterStream(make_filters([setting("a", action="omit")]), base=0)
    for at in range(3000):
        stream.feed(TextDelta(1, 0, "a", [TokenRecord(at, b"a", -1.0, (), at)], at + 1, None))
        assert len(stream._flagged) <= 2 and len(stream._window) <= 3


def test_the_examples_of_the_how_to_work() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "content-filters.md").read_text(encoding="utf-8")
    first = re.findall(r"^```toml\n# onward.toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    tables = tomllib.loads(first)["content_filter"]
    filters = make_filters([content_filter(json.dumps(table)) for table in tables])
    assert filters.max_match_length is not None
    assert filters.flag("Oh Darn!") and filters.flag("key: sk-abcdefghij0123456789") and not filters.flag("darned")
    names: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0], names)
    assert names["phone_numbers"]("call +49301234567 now") == [(5, 17)]
