"""From received bytes to figures: what one request was like, and what a run of them was."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.http_client import Answered, Received, parse
from benchmarks.measure import spread


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. Times are in seconds: `sent` and `ended` on the run's clock, `gaps` between its chunks.

    `tokens` is what usage says, `chunks` how many events carried a choice. `error` is None for a whole answer.
    """

    sent: float
    ended: float
    first: float | None = None
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    chunks: int = 0
    error: str | None = None

    @property
    def seconds(self) -> float:
        return self.ended - self.sent

    @property
    def pace(self) -> float:
        """Mean seconds between tokens after the first (0 for a single one)."""
        if self.first is None or self.tokens < 2:
            return 0.0
        return (self.seconds - self.first) / (self.tokens - 1)

    @property
    def moments(self) -> list[float]:
        """When each of its chunks came."""
        return [] if self.first is None else list(itertools.accumulate(self.gaps, initial=self.sent + self.first))


@dataclass(frozen=True, slots=True)
class Objective:
    """A request is good when its first token comes within `first` and its mean gap is at most `gap` seconds."""

    first: float
    gap: float

    def met_by(self, outcome: Outcome) -> bool:
        return (
            outcome.error is None
            and outcome.first is not None
            and outcome.first <= self.first
            and outcome.pace <= self.gap
        )


def outcome_of(received: Received) -> Outcome:
    """Parse what arrived for a request."""
    answered = parse(received)
    failure = _failure(answered)
    if failure:
        return Outcome(received.sent, received.ended, error=failure)
    moments, usage = _read_chunks(answered)
    if not moments:
        return Outcome(received.sent, received.ended, error="no chunk held a choice")
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    details = usage.get("prompt_tokens_details") or {}
    return Outcome(
        received.sent,
        received.ended,
        first=moments[0] - received.sent,
        gaps=gaps,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=details.get("cached_tokens") or 0,
        tokens=usage.get("completion_tokens", len(moments)),
        chunks=len(moments),
    )


def _failure(answered: Answered) -> str | None:
    if answered.status != 200:
        return f"status {answered.status}"
    if not answered.events:
        return "not a stream"
    return None if answered.events[-1][1] == b"[DONE]" else "stream without [DONE]"


def _read_chunks(answered: Answered) -> tuple[list[float], dict[str, Any]]:
    """When each chunk with a choice came, and the usage told."""
    moments: list[float] = []
    usage: dict[str, Any] = {}
    for moment, data in answered.events:
        if data == b"[DONE]":
            continue
        chunk = json.loads(data)
        usage = chunk.get("usage") or usage
        if chunk.get("choices"):
            moments.append(moment)
    return moments, usage


def summarise(outcomes: Sequence[Outcome], objective: Objective | None = None) -> dict[str, Any]:
    """The figures of a run: tokens a second, and milliseconds at p50, p95, p99."""
    whole = [outcome for outcome in outcomes if outcome.error is None]
    begin = min((outcome.sent for outcome in outcomes), default=0.0)
    wall = max((outcome.ended for outcome in outcomes), default=0.0) - begin
    tokens = sum(outcome.tokens for outcome in whole)
    figures: dict[str, Any] = {
        "requests": len(outcomes),
        "failed": dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
        "wall_s": wall,
        "prompt_tokens": sum(outcome.prompt_tokens for outcome in whole),
        "cached_tokens": sum(outcome.cached_tokens for outcome in whole),
        "output_tokens": tokens,
        "chunks": sum(outcome.chunks for outcome in whole),
        "output_tok_s": tokens / wall if wall else 0.0,
        "requests_s": len(whole) / wall if wall else 0.0,
        "ttft_ms": spread([outcome.first for outcome in whole if outcome.first is not None], 1e3),
        "itl_ms": spread([gap for outcome in whole for gap in outcome.gaps], 1e3),
        "e2e_ms": spread([outcome.seconds for outcome in whole], 1e3),
    }
    if objective is not None:
        good = sum(objective.met_by(outcome) for outcome in outcomes)
        figures["goodput_requests_s"] = good / wall if wall else 0.0
        figures["good_share"] = good / len(outcomes) if outcomes else 0.0
    return figures


def steady_tok_s(outcomes: Sequence[Outcome], clients: int) -> float | None:
    """Output tokens a second of a closed loop while all its clients have work: from the moment when the last client
    sends its second request to the moment when the last request of all is sent. At both all others have just sent
    theirs, so that for each prompt read a whole completion is counted. None with fewer than three requests a client.
    """
    if len(outcomes) < 3 * clients:
        return None
    sent = sorted(outcome.sent for outcome in outcomes)
    begin, end = sent[2 * clients - 1], sent[-1]
    tokens = sum(
        outcome.tokens / outcome.chunks * sum(begin < moment <= end for moment in outcome.moments)
        for outcome in outcomes
        if outcome.chunks
    )
    return tokens / (end - begin)


def table(figures: dict[str, Any]) -> str:
    """A run's figures for a person."""
    lines = [
        f"{figures['output_tok_s']:.1f} output tok/s · {figures['requests_s']:.2f} requests/s · "
        f"{figures['requests']} requests in {figures['wall_s']:.1f} s",
        f"{figures['output_tokens']} tokens by usage in {figures['chunks']} chunks · "
        f"{figures['cached_tokens']} of {figures['prompt_tokens']} prompt tokens cached",
        f"{'ms':24}{'p50':>10}{'p95':>10}{'p99':>10}{'mean':>10}",
    ]
    for key, name in (("ttft_ms", "time to first token"), ("itl_ms", "between tokens"), ("e2e_ms", "end to end")):
        cells = (figures[key][column] for column in ("p50", "p95", "p99", "mean"))
        lines.append(f"{name:24}" + "".join("         –" if cell is None else f"{cell:10.2f}" for cell in cells))
    if "good_share" in figures:
        lines.append(f"goodput {figures['goodput_requests_s']:.2f} requests/s ({figures['good_share']:.0%} good)")
    lines += [f"FAILED {count} × {error}" for error, count in figures["failed"].items()]
    return "\n".join(lines)
