"""Usage and costs of a ledger that is filled before the server starts: buckets, groups, pages, and the official SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai

from .ledger import ADMIN, DAY, MIDNIGHT, NUM_DAYS
from .servers import KEY_PREFIX, Answer, Server
from .table import Area, assert_error, error_of, get, post, says
from .table import base as body

AREA = Area("Usage and costs", "§17")
USAGE, COSTS = "/v1/organization/usage/completions", "/v1/organization/costs"
GROUPS = ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier")
WHOLE = f"start_time={MIDNIGHT}&end_time={MIDNIGHT + NUM_DAYS * DAY}"
FIRST_DAY = f"start_time={MIDNIGHT}&end_time={MIDNIGHT + DAY}"
BEARER = {"authorization": f"Bearer {ADMIN}"}


def ask(server: Server, query: str, path: str = USAGE) -> Answer:
    return server.send("GET", f"{path}?{query}", headers=BEARER)


def rows_of(page: Any) -> list[list[dict[str, Any]]]:
    return [bucket["results"] for bucket in page["data"]]


@contextmanager
def admin(server: Server) -> Iterator[Any]:
    """OpenAI's usage endpoints as its SDK for Python calls them."""
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, admin_api_key=ADMIN, api_key="any", max_retries=0) as client:
        yield client.admin.organization.usage


@contextmanager
def counting(server: Server, name: str, counts: list[str]) -> Iterator[openai.OpenAI]:
    """The SDK for Python with a key. Each of its tries adds the number of retries before it."""

    def count(request: Any) -> None:
        counts.append(request.headers["x-stainless-retry-count"])

    http = openai.DefaultHttpxClient(event_hooks={"request": [count]})
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY_PREFIX + name, http_client=http) as client:
        yield client


@AREA.law(
    "usage.retry",
    "a request that a limit of tokens per minute refuses, by OpenAI's SDK for Python",
    on="team",
    needs_socket=True,
)
def sdk_waits(server: Server) -> None:
    """A client that waits as long as `retry-after-ms` says is served at its second try."""
    counts: list[str] = []
    fields: dict[str, Any] = {"model": "toy", "prompt": "a", "temperature": 0}
    with counting(server, "refills", counts) as client:
        client.completions.create(**fields, max_tokens=1150, extra_body={"ignore_eos": True})
        client.completions.create(**fields, max_tokens=90)
    assert counts in (["0", "0", "1"], ["0", "0"])  # on a slow machine the bucket has been refilled meanwhile


@AREA.law(
    "usage.no_retry",
    "requests that are too large, beyond a budget, or have to wait until tomorrow, by OpenAI's SDK for Python",
    on="team",
    needs_socket=True,
)
def sdk_gives_up(server: Server) -> None:
    """What waiting does not cure, and a wait of more than a minute, is not retried: the answer says so."""
    for name, max_tokens, num_requests in (("small", 40, 1), ("spent", 300, 1), ("tomorrow", 40, 2)):
        counts: list[str] = []
        with counting(server, name, counts) as client:
            try:
                for _ in range(num_requests):
                    client.completions.create(
                        model="toy", prompt="a", max_tokens=max_tokens, extra_body={"ignore_eos": True}
                    )
            except openai.RateLimitError as error:
                assert error.response.headers["x-should-retry"] == "false"
                if name == "tomorrow":
                    assert int(error.response.headers["retry-after"]) > 60
            else:
                raise AssertionError("it was not refused")
        assert counts == ["0"] * num_requests


@AREA.law(
    "usage.python",
    "usage.completions(group_by=[model, project_id]) by OpenAI's SDK for Python",
    on="ledger",
    needs_socket=True,
)
def python_groups(server: Server) -> None:
    """There is a row per pair of groups with usage; all other group fields are null."""
    with admin(server) as endpoints:
        groups = ["model", "project_id"]
        page = endpoints.completions(start_time=MIDNIGHT, end_time=MIDNIGHT + DAY, group_by=groups)
    (bucket,) = page.data
    assert [(row.model, row.project_id) for row in bucket.results] == [("m", None), ("n", None)]
    assert all((row.user_id, row.api_key_id, row.batch, row.service_tier) == (None,) * 4 for row in bucket.results)
    assert [(row.input_tokens, row.output_tokens, row.num_model_requests) for row in bucket.results] == [
        (40, 20, 4),
        (10, 5, 1),
    ]


@AREA.law("usage.spellings", f"GET {USAGE} with group_by as curl, both SDKs and others spell it", on="ledger")
def spellings(server: Server) -> None:
    """Lists are `a=x&a=y`, `a=x,y`, `a[]=x&a[]=y` percent-encoded, as SDKs for Python and Node send it, or `a[0]=x`."""
    pairs = [
        "group_by=model&group_by=project_id",
        "group_by=model%2Cproject_id",
        "group_by=model,project_id",
        "group_by%5B%5D=model&group_by%5B%5D=project_id",
        "group_by[0]=model&group_by[1]=project_id",
    ]
    answers = [ask(server, f"{FIRST_DAY}&{pair}").json for pair in pairs]
    assert all(answer == answers[0] for answer in answers) and len(rows_of(answers[0])[0]) == 2


AREA.sends(
    "usage.ungrouped",
    "Without a group there is one row per busy bucket, with null group fields",
    get(f"{USAGE}?{FIRST_DAY}", **BEARER),
    says(
        "one row, six group fields null",
        lambda answer: [[row[name] for name in GROUPS] for row in rows_of(answer.json)[0]] == [[None] * 6],
    ),
    on="ledger",
)
AREA.sends(
    "usage.idle",
    "An idle day between busy ones is a bucket without results",
    get(f"{USAGE}?{WHOLE}", **BEARER),
    says("results: 1, 0, 1, … rows", lambda answer: [len(rows) for rows in rows_of(answer.json)][:3] == [1, 0, 1]),
    on="ledger",
)
AREA.sends(
    "usage.unaligned",
    "The first bucket begins at start_time, all others at midnight UTC",
    get(f"{USAGE}?start_time={MIDNIGHT + 41_426}&end_time={MIDNIGHT + 3 * DAY}", **BEARER),
    says(
        "edges 11:30:26, then midnights",
        lambda answer: (
            [(each["start_time"], each["end_time"]) for each in answer.json["data"]]
            == [
                (MIDNIGHT + 41_426, MIDNIGHT + DAY),
                (MIDNIGHT + DAY, MIDNIGHT + 2 * DAY),
                (MIDNIGHT + 2 * DAY, MIDNIGHT + 3 * DAY),
            ]
        ),
    ),
    on="ledger",
)
AREA.sends(
    "usage.limit",
    "Of 30 days, without a limit, a page has 7",
    get(f"{USAGE}?{WHOLE}", **BEARER),
    says(
        "7 buckets, has_more, next_page page_…",
        lambda answer: (
            len(answer.json["data"]) == 7 and answer.json["has_more"] and answer.json["next_page"].startswith("page_")
        ),
    ),
    on="ledger",
)


@AREA.law(
    "usage.pages", "next_page followed by OpenAI's SDK for Python, which sends %3D", on="ledger", needs_socket=True
)
def pages(server: Server) -> None:
    """Pages follow each other to the end, each day once; the last one has neither has_more nor next_page."""
    starts: list[int] = []
    query: dict[str, Any] = {"start_time": MIDNIGHT, "end_time": MIDNIGHT + NUM_DAYS * DAY}
    with admin(server) as endpoints:
        page = endpoints.completions(**query)
        for _ in range(NUM_DAYS):
            starts += [bucket.start_time for bucket in page.data]
            if not page.has_more:
                break
            page = endpoints.completions(**query, page=page.next_page)
    assert starts == [MIDNIGHT + day * DAY for day in range(NUM_DAYS)]
    assert page.next_page is None


@AREA.law("usage.token", f"GET {USAGE} with next_page and another group_by", on="ledger")
def token_is_bound(server: Server) -> None:
    """A page token is bound to the other parameters."""
    token = ask(server, WHOLE).json["next_page"]
    words = "The page token is invalid, have you modified the query parameters?"
    error = error_of(words, None, "invalid_request_error")
    assert_error(ask(server, f"{WHOLE}&group_by=model&page={token.replace('=', '%3D')}"), 400, error)


for name, query, param in (
    ("limit", f"start_time={MIDNIGHT}&limit=32", "limit"),
    ("start_time", "limit=3", "start_time"),
    ("width", f"start_time={MIDNIGHT}&bucket_width=1w", "bucket_width"),
):
    AREA.sends(
        f"usage.wrong_{name}",
        f"A wrong or missing {param} is named",
        get(f"{USAGE}?{query}", **BEARER),
        says(f"param {param}", lambda answer, param=param: answer.error["param"] == param),  # type: ignore[misc]
        status=400,
        on="ledger",
    )


@AREA.law("usage.batch", f"GET {USAGE} with batch=true, batch=false and group_by=batch", on="ledger")
def batches(server: Server) -> None:
    """Lines of batches are requests, which `batch` selects or leaves out, and by which rows are grouped."""
    day = f"start_time={MIDNIGHT + 2 * DAY}&end_time={MIDNIGHT + 3 * DAY}"
    found = {batch: rows_of(ask(server, f"{day}&batch={batch}").json)[0] for batch in ("true", "false")}
    assert [found["true"][0]["num_model_requests"], found["false"][0]["num_model_requests"]] == [3, 2]
    grouped = rows_of(ask(server, f"{day}&group_by=batch").json)[0]
    assert [(row["batch"], row["num_model_requests"]) for row in grouped] == [(False, 2), (True, 3)]


@AREA.law(
    "costs.items",
    f"GET {COSTS} with group_by=line_item, and by OpenAI's SDK for Python",
    on="ledger",
    needs_socket=True,
)
def costs(server: Server) -> None:
    """Amounts are numbers in whole units of a currency; items of a model are its input and output, with tokens."""
    (items, *_) = rows_of(ask(server, f"{FIRST_DAY}&group_by=line_item", COSTS).json)
    shown = [(row["line_item"], row["amount"], row["quantity"], row["quantity_unit"]) for row in items]
    assert shown[:2] == [
        ("m, input", {"value": 10.0, "currency": "usd"}, 40, "tokens"),
        ("m, output", {"value": 2.0, "currency": "usd"}, 20, "tokens"),
    ]
    with admin(server) as endpoints:
        (bucket,) = endpoints.costs(start_time=MIDNIGHT, end_time=MIDNIGHT + DAY).data
    assert [row.amount.value for row in bucket.results] == [15.0]


AREA.sends(
    "usage.other_kinds",
    "Of what this server does not have there are pages of empty buckets",
    get(f"/v1/organization/usage/embeddings?{FIRST_DAY}", **BEARER),
    says("one empty bucket", lambda answer: rows_of(answer.json) == [[]]),
    on="ledger",
)
AREA.sends(
    "usage.project_key",
    "An ordinary key is refused, with the scope that it lacks",
    get(f"{USAGE}?{FIRST_DAY}", authorization=f"Bearer {KEY_PREFIX}alice"),
    status=403,
    error=error_of(
        "You have insufficient permissions for this operation. Missing scopes: api.usage.read. Check that you have …"
    ),
    on="ledger",
)
AREA.sends(
    "usage.admin_completes_nothing",
    "An admin key completes nothing",
    post(body(), **BEARER),
    says("admin key", lambda answer: "admin key" in answer.error["message"]),
    status=403,
    on="ledger",
)
AREA.sends(
    "usage.half_open",
    "A request that ends exactly at end_time is not counted before it",
    get(f"{USAGE}?start_time={MIDNIGHT}&end_time={MIDNIGHT + 40_000}", **BEARER),
    says("no results", lambda answer: rows_of(answer.json) == [[]]),
    on="ledger",
)
