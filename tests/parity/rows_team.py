"""Keys with limits: headers, both families of 429, and responses without either."""

from __future__ import annotations

import re
from typing import Any

from .servers import Answer, Server
from .table import Area, assert_error, base, error_of, get, header, no_header, post, says

AREA = Area("Keys with limits", "§16")
SIX = [f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")]
DURATION = r"((\d+h)?(\d+m)?\d+(\.\d+)?s|\d+ms)"
NONE = says("no x-ratelimit-* header", lambda answer: not any(name in answer.headers for name in SIX))
NO_RETRY = header("x-should-retry", "false")


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer sk-parity-{name}"}


def asking(name: str, **fields: Any) -> tuple[Any, ...]:
    return post(base(**fields), **key(name))


def ask(server: Server, name: str, **fields: Any) -> Answer:
    method, path, body, headers = asking(name, **fields)
    return server.send(method, path, body, headers)


AREA.sends(
    "limits.headers",
    "The first request at 500 requests and 200,000 tokens per minute",
    asking("fresh"),
    header("x-ratelimit-limit-requests", "500"),
    header("x-ratelimit-remaining-requests", "499"),
    header("x-ratelimit-reset-requests", "120ms"),
    header("x-ratelimit-limit-tokens", "200000"),
    header("x-ratelimit-remaining-tokens", r"1999\d\d"),
    header("x-ratelimit-reset-tokens", DURATION),
    on="team",
)
AREA.sends("limits.none", "A key without limits", asking("free"), NONE, on="team")
AREA.sends("limits.models", "Lists have no limits", get("/v1/models", **key("fresh")), NONE, on="team")
AREA.sends(
    "limits.invalid",
    "An invalid request has the headers",
    asking("fresh", max_tokens=-1),
    header("x-ratelimit-limit-requests", "500"),
    status=400,
    on="team",
)
AREA.sends("limits.wrong_key", "A wrong key has none of them", asking("wrong"), NONE, status=401, on="team")


@AREA.law("limits.requests", "two requests at one per minute", on="team")
def requests_per_minute(server: Server) -> None:
    """The second request at one per minute is a 429 of type requests, with the wait in words and two headers."""
    assert ask(server, "once").status == 200
    refused = ask(server, "once")
    words = (
        "Rate limit reached for toy in organization org-onward on requests per min (RPM): Limit 1, Used 1, "
        "Requested 1. Please try again in …"
    )
    assert_error(refused, 429, error_of(words, None, "rate_limit_exceeded", "requests"))
    assert re.search(rf"try again in {DURATION}\. ", refused.error["message"])
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert 0 < float(refused.headers["retry-after-ms"]) <= 60_000
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


@AREA.law("limits.tokens", "streams of 40 tokens at 100 per minute", on="team")
def tokens_per_minute(server: Server) -> None:
    """The tokens that a request may generate are reserved: the second one is a 429 of type tokens."""
    long = {"logit_bias": {"97": 100}, "max_tokens": 40}
    assert ask(server, "tokens", **long).status == 200
    refused = ask(server, "tokens", **long, stream=True)
    assert (refused.status, refused.error["type"], refused.error["code"]) == (429, "tokens", "rate_limit_exceeded")
    words = rf"\(TPM\): Limit 100, Used \d+, Requested \d+\. Please try again in {DURATION}\. "
    assert re.search(words, refused.error["message"])
    assert int(refused.headers["retry-after"]) >= 1


AREA.sends(
    "limits.too_large",
    "A request that is larger than the tokens per minute",
    asking("small"),
    NO_RETRY,
    no_header("retry-after"),
    status=429,
    error=error_of(
        "Request too large for toy in organization org-onward on tokens per min (TPM): Limit 10, Requested 33. The "
        "input or output tokens must be reduced in order to run successfully. …",
        None,
        "rate_limit_exceeded",
        "tokens",
    ),
    on="team",
)
AREA.sends(
    "limits.spent",
    "A budget that is used up",
    asking("spent", max_tokens=300),
    NO_RETRY,
    no_header("retry-after"),
    status=429,
    error=error_of(
        "You exceeded the spend limit of your key for this month (UTC): …",
        None,
        "project_spend_limit_exceeded",
        "insufficient_quota",
    ),
    on="team",
)
