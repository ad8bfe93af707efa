"""The errors of requests that a key's limit refuses: both families of 429 (behaviour §16.6)."""

from __future__ import annotations

from onward.errors import NO_RETRY, RateLimited
from onward.service.limits import Cause, Refusal, duration

ORGANIZATION = "org-onward"
"""Clients expect an id in the message; there are no organizations here (behaviour §16.7)."""
MAX_ADVISED_MS = 60_000
"""For longer waits SDKs sleep, give up or retry at once, depending on the SDK: they are asked not to retry (behaviour
§16.8)."""
_SEE = "Ask the operator of this server for the limits of your key."
_BUCKETS: dict[Cause, tuple[str, str]] = {
    "requests": ("requests", "requests per min (RPM)"),
    "parallel": ("requests", "parallel requests"),
    "tokens": ("tokens", "tokens per min (TPM)"),
    "tokens_per_day": ("tokens", "tokens per day (TPD)"),
}


def refused(refusal: Refusal, model: str) -> RateLimited:
    """Return the error of a request that a limit refuses, with the wait in words and headers, or the advice not to
    retry."""
    counts = f"Limit {refusal.limit}, Used {refusal.used}, Requested {refusal.requested}."
    if refusal.cause == "too_large" or (refusal.cause == "tokens_per_day" and refusal.wait_ms is None):
        name = "tokens per min (TPM)" if refusal.cause == "too_large" else "tokens per day (TPD)"
        return RateLimited(
            f"Request too large for {model} in organization {ORGANIZATION} on {name}: Limit {refusal.limit}, "
            f"Requested {refusal.requested}. The input or output tokens must be reduced in order to run successfully. "
            f"{_SEE}",
            type="tokens",
            headers=dict(NO_RETRY),
        )
    if refusal.wait_ms is None or refusal.cause not in _BUCKETS:
        return _quota(refusal)
    kind, words = _BUCKETS[refusal.cause]
    return RateLimited(
        f"Rate limit reached for {model} in organization {ORGANIZATION} on {words}: {counts} Please try again in "
        f"{duration(refusal.wait_ms)}. {_SEE}",
        type=kind,
        headers=_wait_headers(refusal.wait_ms),
    )


def storage_refused(limit: int, stored: int) -> RateLimited:
    """Return the error of a file that a key may not store any more."""
    return RateLimited(
        f"You exceeded the storage limit of your key: {stored} of {limit} bytes are used. Delete files that you no "
        f"longer need. {_SEE}",
        type="insufficient_quota",
        code="storage_limit_exceeded",
        headers=dict(NO_RETRY),
    )


def _quota(refusal: Refusal) -> RateLimited:
    """Return the error of a budget that is used up, for which waiting does not help soon."""
    period = "month" if refusal.cause.endswith("month") else "day"
    if refusal.cause.startswith("cost"):
        code, what = "project_spend_limit_exceeded", "spend limit"
        numbers = f"{_money(refusal.used)} of {_money(refusal.limit)} are used or reserved"
    else:
        code, what = "organization_usage_limit_exceeded", "token limit"
        numbers = f"{refusal.used} of {refusal.limit} tokens are used or reserved"
    return RateLimited(
        f"You exceeded the {what} of your key for this {period} (UTC): {numbers}. {_SEE}",
        type="insufficient_quota",
        code=code,
        headers=dict(NO_RETRY),
    )


def _wait_headers(ms: int) -> dict[str, str]:
    found = {"retry-after": str(max(1, -(-ms // 1000))), "retry-after-ms": str(ms)}
    return found | (NO_RETRY if ms > MAX_ADVISED_MS else {})


def _money(micro: int) -> str:
    return f"{micro / 1_000_000:.2f}"
