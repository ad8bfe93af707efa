"""A request with the answer that was saved, and where another answer begins to differ from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

COMPLETIONS = "/v1/completions"
LOGPROBS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
"""The keys of `usage` that depend on the request alone; its details say what was cached and drafted."""
SHOWN_CHARACTERS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A request and its answer. `fields` are the body of the request to `route`, `seed` the one that was drawn where
    the body has none.

    `choices` are those of the answer, with the keys that were saved. One without `index` is any of the request's; one
    without a finish reason was not received to its end. `is_whole`: there were no others. `problem` says why it has no
    answer that could be computed again; "" if it has one. `otherwise` is the request or answer that it may be instead,
    where the file does not say. `at_ms` is when a log of requests got it, in Unix milliseconds; 0 elsewhere.
    """

    id: str
    model: str = ""
    fields: dict[str, Any]
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None = None
    fingerprint: str = ""
    seed: int | None = None
    route: str = COMPLETIONS
    is_whole: bool = True
    problem: str = ""
    otherwise: Saved | None = None
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where an answer begins to differ: the key of the choice, or of the answer where `choice` is None; in a text the
    code point, in log probabilities the token. `saved` and `computed` are what is there."""

    choice: int | None
    field: str
    character: int | None = None
    token: int | None = None
    saved: Any
    computed: Any

    def in_words(self) -> str:
        places = [] if self.choice is None else [f"choice {self.choice}"]
        places += [] if self.field == "text" else [self.field]
        places += [] if self.character is None else [f"character {self.character}"]
        places += [] if self.token is None else [f"token {self.token}"]
        return f"{', '.join(places)}: {_shown(self.saved)} was saved, {_shown(self.computed)} is computed"

    def as_document(self) -> dict[str, Any]:
        return {
            name: value for name, value in asdict(self).items() if name in ("saved", "computed") or value is not None
        }


def _shown(value: Any) -> str:
    words = "nothing" if value is None or value == "" else repr(value)
    return words if len(words) <= 2 * SHOWN_CHARACTERS else words[: 2 * SHOWN_CHARACTERS - 1] + "…"


def first_difference(saved: Saved, computed: dict[str, Any]) -> Difference | None:
    """Return where a computed completion begins to differ from the saved answer, None if it is the same."""
    left = {choice["index"]: choice for choice in computed["choices"]}
    for choice in saved.choices:
        index = choice.get("index")
        other = _nearest(choice, left.values()) if index is None else left.pop(index, None)
        if other is None:
            return Difference(choice=index, field="choice", saved=_beginning(choice["text"]), computed=None)
        if (difference := _in_choice(choice, other, saved.is_whole)) is not None:
            return difference
    if saved.is_whole and left:
        surplus = min(left)
        return Difference(choice=surplus, field="choice", saved=None, computed=_beginning(left[surplus]["text"]))
    for name in USAGE if saved.usage else ():
        if saved.usage and saved.usage.get(name) != computed["usage"][name]:
            value = computed["usage"][name]
            return Difference(choice=None, field=f"usage.{name}", saved=saved.usage.get(name), computed=value)
    return None


def _nearest(choice: dict[str, Any], found: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the choice whose text has the longest common beginning with a saved one, and the nearest length."""

    def likeness(other: dict[str, Any]) -> tuple[int, int]:
        return _common(choice["text"], other["text"]), -abs(len(other["text"]) - len(choice["text"]))

    return max(found, key=likeness, default=None)


def _in_choice(saved: dict[str, Any], computed: dict[str, Any], is_whole: bool) -> Difference | None:
    """Return where a choice begins to differ; one that was not received to its end is compared as far as it got."""
    index = computed["index"]
    is_cut = not is_whole and saved.get("finish_reason") is None
    text = computed["text"][: len(saved["text"])] if is_cut else computed["text"]
    if saved["text"] != text:
        at = _common(saved["text"], text)
        return Difference(
            choice=index,
            field="text",
            character=at,
            token=_token_at(saved.get("logprobs"), computed.get("logprobs")),
            saved=_beginning(saved["text"][at:]),
            computed=_beginning(text[at:]),
        )
    for name, value in saved.items():
        other = computed.get(name)
        if name in ("index", "text") or (is_cut and value is None):
            continue
        if name == "logprobs" and value and other:
            if (difference := _in_logprobs(index, value, other, is_cut)) is not None:
                return difference
        elif value != (other[: len(value)] if is_cut and isinstance(value, list) and other else other):
            return Difference(choice=index, field=name, saved=value, computed=other)
    return None


def _in_logprobs(index: int, saved: dict[str, Any], computed: dict[str, Any], is_cut: bool) -> Difference | None:
    for name in LOGPROBS:
        one, other = saved.get(name), computed.get(name)
        if one == other:
            continue
        one, other = one or [], other or []
        other = other[: len(one)] if is_cut else other
        if one == other:
            continue
        at = _first_unequal(one, other)
        values = [each[at] if at < len(each) else None for each in (one, other)]
        return Difference(choice=index, field=f"logprobs.{name}", token=at, saved=values[0], computed=values[1])
    return None


def _token_at(saved: dict[str, Any] | None, computed: dict[str, Any] | None) -> int | None:
    """Return the first token that differs, None where the tokens are not known."""
    if not saved or not computed:
        return None
    return _first_unequal(saved.get("tokens") or [], computed["tokens"])


def _first_unequal(one: list[Any], other: list[Any]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _common(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts, in code points."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # bisection: comparing slices is fast
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _beginning(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
