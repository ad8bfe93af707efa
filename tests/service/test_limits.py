"""The arithmetic of limits against an independent oracle in fractions, and the words of behaviour §16."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.service.limits import (
    DAY_MS,
    KeyUsage,
    Limits,
    Refusal,
    Reservation,
    at,
    bill,
    duration,
    headers,
    reserve,
    settle,
)

NOON = 1_795_694_400_000


@dataclass
class Oracle:
    """A bucket of requests and one of tokens as rational numbers, running requests and a day's tokens as sums."""

    limits: Limits
    now: int = NOON
    requests: Fraction = Fraction(0)
    tokens: Fraction = Fraction(0)
    running: dict[int, tuple[int, int]] = field(default_factory=dict)
    day_tokens: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.requests = Fraction(self.limits.requests_per_minute or 0)
        self.tokens = Fraction(self.limits.tokens_per_minute or 0)

    def advance(self, ms: int) -> None:
        self.now += ms
        per_minute = self.limits.requests_per_minute or 0, self.limits.tokens_per_minute or 0
        self.requests = min(Fraction(per_minute[0]), self.requests + Fraction(per_minute[0] * ms, 60_000))
        self.tokens = min(Fraction(per_minute[1]), self.tokens + Fraction(per_minute[1] * ms, 60_000))

    def admits(self, tokens: int) -> bool:
        limits = self.limits
        day = self.day_tokens.get(self.now // DAY_MS, 0)
        allowed = (
            (limits.requests_per_minute is None or self.requests >= 1)
            and (limits.tokens_per_minute is None or self.tokens >= tokens)
            and (limits.parallel_requests is None or len(self.running) < limits.parallel_requests)
            and (limits.tokens_per_day is None or day + tokens <= limits.tokens_per_day)
        )
        self.requests = max(Fraction(0), self.requests - 1)
        return allowed

    def begin(self, number: int, tokens: int) -> None:
        self.running[number] = (tokens, self.now // DAY_MS)
        self.tokens -= tokens
        self.day_tokens[self.now // DAY_MS] = self.day_tokens.get(self.now // DAY_MS, 0) + tokens

    def end(self, number: int, billed: int) -> None:
        tokens, day = self.running.pop(number)
        self.tokens = min(Fraction(self.limits.tokens_per_minute or 0), self.tokens + tokens - billed)
        self.day_tokens[day] += billed - tokens


some = st.one_of(st.none(), st.integers(1, 40))
steps = st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 30), st.integers(0, 100), st.booleans()), max_size=40)


@given(
    st.builds(Limits, requests_per_minute=some, tokens_per_minute=some, parallel_requests=some, tokens_per_day=some),
    steps,
)
def test_what_is_admitted_is_what_an_oracle_in_fractions_admits(
    limits: Limits, plan: list[tuple[int, int, int, bool]]
) -> None:
    usage, oracle = KeyUsage(), Oracle(limits)
    running: dict[int, Reservation] = {}
    for number, (elapsed, tokens, share, ends) in enumerate(plan):
        oracle.advance(elapsed)
        usage, outcome = reserve(limits, usage, tokens, 0, oracle.now)
        assert isinstance(outcome, Reservation) is oracle.admits(tokens)
        if isinstance(outcome, Reservation):
            oracle.begin(number, tokens)
            running[number] = outcome
        if ends and running:
            first, reservation = next(iter(running.items()))
            billed = reservation.tokens * share // 100
            usage = settle(limits, usage, running.pop(first), billed, 0, oracle.now)
            oracle.end(first, billed)
        assert usage.num_running == len(oracle.running)
        assert usage.day_tokens == oracle.day_tokens.get(usage.day, 0)


@given(st.integers(1, 1000), st.integers(1, 1000), st.lists(st.integers(0, 60), max_size=8))
def test_after_the_advised_wait_a_request_is_admitted_and_a_millisecond_before_it_is_not(
    per_minute: int, limit: int, before: list[int]
) -> None:
    limits = Limits(requests_per_minute=per_minute, tokens_per_minute=limit)
    usage, now = KeyUsage(), NOON
    outcome: Reservation | Refusal = Reservation(0, 0, 0, 0)
    for tokens in [*before, *[1] * 2000]:
        usage, outcome = reserve(limits, usage, min(tokens, limit), 0, now)
        if isinstance(outcome, Refusal):
            break
    assert isinstance(outcome, Refusal) and outcome.wait_ms is not None
    early, late = (
        reserve(limits, usage, outcome.requested if outcome.cause == "tokens" else 0, 0, now + wait)[1]
        for wait in (outcome.wait_ms - 1, outcome.wait_ms)
    )
    assert isinstance(early, Refusal)  # maybe for requests: the one that was refused counted against these
    assert not (isinstance(late, Refusal) and late.cause == outcome.cause)


@pytest.mark.parametrize(
    ("limits", "tokens", "cause", "waits"),
    [
        (Limits(tokens_per_minute=10), 11, "too_large", False),
        (Limits(tokens_per_day=10), 11, "tokens_per_day", False),
        (Limits(tokens_per_month=10), 11, "tokens_per_month", False),
        (Limits(cost_per_day=10), 11, "cost_per_day", False),
        (Limits(cost_per_month=10), 11, "cost_per_month", False),
        (Limits(cost_per_month=10, requests_per_minute=1), 11, "cost_per_month", False),
    ],
)
def test_each_limit_refuses_what_exceeds_it(limits: Limits, tokens: int, cause: str, waits: bool) -> None:
    _, outcome = reserve(limits, KeyUsage(), tokens, tokens, NOON)
    assert isinstance(outcome, Refusal)
    assert (outcome.cause, outcome.wait_ms is not None) == (cause, waits)


def test_a_used_up_day_ends_at_midnight_utc() -> None:
    limits = Limits(tokens_per_day=10)
    usage, _ = reserve(limits, KeyUsage(), 10, 0, NOON)
    usage, refused = reserve(limits, usage, 1, 0, NOON)
    assert isinstance(refused, Refusal) and refused.wait_ms == 12 * 3_600_000
    _, outcome = reserve(limits, usage, 10, 0, NOON + 12 * 3_600_000)
    assert isinstance(outcome, Reservation)


def test_what_was_reserved_yesterday_does_not_change_today() -> None:
    limits = Limits(tokens_per_day=100)
    usage, reservation = reserve(limits, KeyUsage(), 80, 0, NOON)
    assert isinstance(reservation, Reservation)
    usage, _ = reserve(limits, usage, 10, 0, NOON + DAY_MS)
    usage = settle(limits, usage, reservation, 5, 0, NOON + DAY_MS)
    assert (usage.day_tokens, usage.month_tokens, usage.num_running) == (10, 15, 1)


def test_what_was_not_reserved_is_added() -> None:
    usage = bill(Limits(tokens_per_minute=100), KeyUsage(), 30, 7, NOON)
    assert (usage.day_tokens, usage.day_cost, usage.num_running) == (30, 7, 0)
    assert headers(Limits(tokens_per_minute=100), usage)["x-ratelimit-remaining-tokens"] == "70"


@pytest.mark.parametrize(("jump", "level"), [(-30_000, 0), (-90_000, 0), (30_000, 30), (10**12, 60)])
def test_clocks_that_jump_neither_free_nor_lock_for_long(jump: int, level: int) -> None:
    limits = Limits(tokens_per_minute=60)
    usage, _ = reserve(limits, KeyUsage(), 60, 0, NOON)
    usage = at(limits, usage, NOON + jump)
    assert headers(limits, usage)["x-ratelimit-remaining-tokens"] == str(level)
    if jump == -90_000:  # set back for longer than the slack: it refills from the new time on
        usage = at(limits, usage, NOON + jump + 60_000)
        assert headers(limits, usage)["x-ratelimit-remaining-tokens"] == "60"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"), (2, "2ms"), (20, "20ms"), (120, "120ms"), (999, "999ms"), (1000, "1s"), (8640, "8.64s"),
        (60_000, "1m0s"), (360_000, "6m0s"), (62_500, "1m2.5s"), (3_723_500, "1h2m3.5s"), (3_600_000, "1h0m0s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_go_writes_them(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_the_first_request_at_500_a_minute_has_the_headers_of_openai() -> None:
    usage, _ = reserve(Limits(requests_per_minute=500), KeyUsage(), 5, 0, NOON)
    assert headers(Limits(requests_per_minute=500), usage) == {
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-reset-requests": "120ms",
    }
    assert headers(Limits(tokens_per_day=5), usage) == {}
