"""From received bytes to figures: the outcome of one request, and a summary of a run."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.http_client import Received, Response, parse_response
from benchmarks.measure import spread


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one request. Times are in seconds: `sent` and `ended` on the run's clock, `ttft` from `sent` to
    the first chunk, `gaps` between chunks.

    `tokens` is the number in usage, `chunks` the number of events with a choice. `error` is None for a complete
    response. `retry_after`: the header of an error.
    """

    sent: float
    ended: float
    ttft: float | None = None
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    chunks: int = 0
    error: str | None = None
    retry_after: str | None = None

    @property
    def seconds(self) -> float:
        return self.ended - self.sent

    @property
    def mean_itl(self) -> float:
        """Mean seconds between tokens (0 for a single token)."""
        if self.ttft is None or self.tokens < 2:
            return 0.0
        return (self.seconds - self.ttft) / (self.tokens - 1)

    @property
    def chunk_times(self) -> list[float]:
        """Arrival time of each chunk on the run's clock."""
        return [] if self.ttft is None else list(itertools.accumulate(self.gaps, initial=self.sent + self.ttft))


@dataclass(frozen=True, slots=True)
class Objective:
    """A request is good if its time to first token and its mean time between tokens are at most these, in seconds."""

    ttft: float
    mean_itl: float

    def met_by(self, outcome: Outcome) -> bool:
        return (
            outcome.error is None
            and outcome.ttft is not None
            and outcome.ttft <= self.ttft
            and outcome.mean_itl <= self.mean_itl
        )


def parse_outcome(received: Received) -> Outcome:
    """Parse the raw response to a request."""
    response = parse_response(received)
    failure = _failure(response)
    if failure:
        return Outcome(received.sent, received.ended, error=failure, retry_after=response.headers.get("retry-after"))
    times, usage = _chunk_times_and_usage(response)
    if not times:
        return Outcome(received.sent, received.ended, error="no chunk has a choice")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    details = usage.get("prompt_tokens_details") or {}
    return Outcome(
        received.sent,
        received.ended,
        ttft=times[0] - received.sent,
        gaps=gaps,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=details.get("cached_tokens") or 0,
        tokens=usage.get("completion_tokens", len(times)),
        chunks=len(times),
    )


def _failure(response: Response) -> str | None:
    if response.status != 200:
        return f"status {response.status}"
    if not response.events:
        return "not a stream"
    return None if response.events[-1][1] == b"[DONE]" else "stream without [DONE]"


def _chunk_times_and_usage(response: Response) -> tuple[list[float], dict[str, Any]]:
    """Return the arrival time of each chunk with a choice, and the usage."""
    times: list[float] = []
    usage: dict[str, Any] = {}
    for arrived, data in response.events:
        if data == b"[DONE]":
            continue
        chunk = json.loads(data)
        usage = chunk.get("usage") or usage
        if chunk.get("choices"):
            times.append(arrived)
    return times, usage


def summarise(outcomes: Sequence[Outcome], objective: Objective | None = None) -> dict[str, Any]:
    """Return the figures of a run: tokens per second, and milliseconds at p50, p95 and p99."""
    complete = [outcome for outcome in outcomes if outcome.error is None]
    begin = min((outcome.sent for outcome in outcomes), default=0.0)
    wall = max((outcome.ended for outcome in outcomes), default=0.0) - begin
    tokens = sum(outcome.tokens for outcome in complete)
    figures: dict[str, Any] = {
        "requests": len(outcomes),
        "failed": dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
        "wall_s": wall,
        "prompt_tokens": sum(outcome.prompt_tokens for outcome in complete),
        "cached_tokens": sum(outcome.cached_tokens for outcome in complete),
        "output_tokens": tokens,
        "chunks": sum(outcome.chunks for outcome in complete),
        "output_tok_s": tokens / wall if wall else 0.0,
        "requests_s": len(complete) / wall if wall else 0.0,
        "ttft_ms": spread([outcome.ttft for outcome in complete if outcome.ttft is not None], 1e3),
        "itl_ms": spread([gap for outcome in complete for gap in outcome.gaps], 1e3),
        "e2e_ms": spread([outcome.seconds for outcome in complete], 1e3),
    }
    if objective is not None:
        good = sum(objective.met_by(outcome) for outcome in outcomes)
        figures["goodput_requests_s"] = good / wall if wall else 0.0
        figures["good_share"] = good / len(outcomes) if outcomes else 0.0
    return figures


def steady_tok_s(outcomes: Sequence[Outcome], clients: int) -> float | None:
    """Return output tokens per second of a closed loop while all its clients have work.

    Counts from when the last client sends its second request until the last request of all is sent. At both times all
    other clients have just sent theirs, so that for each prefill a whole completion is counted. None with fewer than
    three requests per client.
    """
    if len(outcomes) < 3 * clients:
        return None
    sent = sorted(outcome.sent for outcome in outcomes)
    begin, end = sent[2 * clients - 1], sent[-1]
    tokens = sum(
        outcome.tokens / outcome.chunks * sum(begin < time <= end for time in outcome.chunk_times)
        for outcome in outcomes
        if outcome.chunks
    )
    return tokens / (end - begin)


def table(figures: dict[str, Any]) -> str:
    """Return the figures of a run as a table for the terminal."""
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
