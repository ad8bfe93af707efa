"""GET /v1/organization/usage/… and /costs: who used what, in OpenAI's shapes (behaviour §17)."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onward.api import refusals
from onward.api.operations import get
from onward.api.routes import JSON, Route, respond_json
from onward.errors import Forbidden, InvalidRequest, NotFound
from onward.server.exchange import HttpExchange
from onward.service.records import Question, Sums, edges

if TYPE_CHECKING:  # a server without a database does not import what needs one
    from onward.service.team import Team

NO_DATABASE = "This server has no ledger: it was started without --data-dir or --database."
MISSING_SCOPE = (
    "You have insufficient permissions for this operation. Missing scopes: api.usage.read. Check that you have the "
    "correct role in your organization (Reader, Writer, Owner), and if you're using a restricted API key, that it has "
    "the necessary scopes."
)
BAD_TOKEN = "The page token is invalid, have you modified the query parameters?"
WIDTHS = {"1m": (60, 60, 1440), "1h": (3600, 24, 168), "1d": (86_400, 7, 31)}
"""Bucket width → its seconds, the default and the largest number of buckets of a page."""
MAX_COST_DAYS = 180
KINDS = (
    *("completions", "embeddings", "moderations", "images", "audio_speeches", "audio_transcriptions"),
    *("vector_stores", "code_interpreter_sessions", "file_search_calls", "web_search_calls"),
)
GROUPS = ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "api_source")
COST_GROUPS = ("project_id", "line_item", "api_key_id", "user_id", "api_source")
LATEST = 253_402_300_800
"""The end of the year 9999: later times are mistakes."""
Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Page:
    """One question of a client: `question` without its groups that only have one value, and where the page begins."""

    question: Question
    group_by: tuple[str, ...]
    limit: int
    hash: int


class Organization:
    """The endpoints of usage and costs. Without a database they do not exist."""

    def __init__(self, team: Team | None) -> None:
        self._team = team

    async def usage(self, exchange: HttpExchange) -> None:
        """Usage of completions; for what this server does not have, pages of empty buckets. Raises NotFound,
        Forbidden, InvalidRequest."""
        team, kind = self._allowed(exchange), exchange.path_value
        if kind not in KINDS:
            raise NotFound(f"There is no usage of {str(kind)[:64]!r}.")
        page = _page(exchange.queries(), team.now_ms // 1000, GROUPS, WIDTHS)
        found = await team.ask(page.question) if kind == "completions" else []
        await _respond(exchange, page, found, lambda sums: [_usage_row(sums, page)], team.now_ms // 1000)

    async def costs(self, exchange: HttpExchange) -> None:
        """Costs by day, in the currency of the prices. Raises NotFound, Forbidden, InvalidRequest."""
        team = self._allowed(exchange)
        widths = {"1d": (86_400, 7, MAX_COST_DAYS)}
        page = _page(exchange.queries(), team.now_ms // 1000, COST_GROUPS, widths)
        found = [sums for sums in await team.ask(page.question) if sums.prompt_cost or sums.completion_cost]
        await _respond(exchange, page, found, lambda sums: _cost_rows(sums, page), team.now_ms // 1000)

    def _allowed(self, exchange: HttpExchange) -> Team:
        """Return the team, if the request may see it: it has an admin key, or no key is needed."""
        if self._team is None:
            raise NotFound(NO_DATABASE)
        if exchange.key is not None and (exchange.grant is None or not exchange.grant.is_admin):
            raise Forbidden(MISSING_SCOPE)
        return self._team


def _page(pairs: Pairs, now: int, groups: tuple[str, ...], widths: dict[str, tuple[int, int, int]]) -> Page:
    """Return what a query asks for. Raises InvalidRequest with the parameter."""
    given = {name: values[0] for name in ("start_time", "end_time", "limit", "page") if (values := _list(pairs, name))}
    word = (_list(pairs, "bucket_width") or ["1d"])[0]
    if word not in widths:
        raise refusals.no_such_value("bucket_width", word, "', '".join(widths))
    width, default, most = widths[word]
    limit = _integer(given, "limit", default, 1, most)
    group_by = tuple(_list(pairs, "group_by"))
    for name in group_by:
        if name not in groups:
            raise refusals.no_such_value("group_by", name, "', '".join(groups))
    filters = tuple(tuple(sorted(_list(pairs, name))) for name in ("models", "api_key_ids", "batch"))
    hash = _hash((word, sorted(group_by), filters, given.get("end_time")))
    if "page" in given:
        start = _start_of(given["page"], hash)
    elif "start_time" in given:
        start = _integer(given, "start_time", 0, 0, LATEST)
    else:
        raise refusals.missing("start_time")
    end = _integer(given, "end_time", now - now % width + width, 0, LATEST)
    if end <= start and "page" not in given and "end_time" in given:
        raise InvalidRequest("'end_time' must be after 'start_time'.", param="end_time", code="invalid_value")
    bounds = edges(start, min(end, start + (limit + 1) * width), width)
    last = bounds[limit] if len(bounds) > limit else end
    wanted = {*group_by, *(["model"] if "line_item" in group_by else [])}
    named = tuple(name for name in ("api_key_id", "model", "batch") if name in wanted)
    question = Question(start, last, width, named, filters[0], filters[1], end, _boolean(pairs, "batch"))
    return Page(question, group_by, limit, hash)


def _list(pairs: Pairs, name: str) -> list[str]:
    """Return the values of a parameter in any encoding that clients use: `a=x&a=y`, `a[]=x`, `a[0]=x`, `a=x,y`. With
    brackets, a comma is a part of a value."""
    given = [(key, value) for key, value in pairs if key.partition("[")[0] == name]
    return [part for key, value in given for part in (value.split(",") if key == name else [value]) if part]


def _integer(given: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 20):
        raise refusals.wrong_type(name, "an integer", text)
    value = int(text)
    if value > most:
        raise refusals.above_maximum(name, "integer", most, value)
    if value < least:
        raise refusals.below_minimum(name, "integer", least, value)
    return value


def _boolean(pairs: Pairs, name: str) -> bool | None:
    text = (_list(pairs, name) or [""])[0]
    if text not in ("", "true", "false"):
        raise refusals.wrong_type(name, "a boolean", text)
    return None if not text else text == "true"


def _hash(value: object) -> int:
    return int.from_bytes(hashlib.blake2b(json.dumps(value).encode(), digest_size=4).digest(), "big")


def _token(now: int, hash: int, start: int) -> str:
    return "page_" + base64.urlsafe_b64encode(struct.pack(">qIq", now, hash, start)).decode()


def _start_of(token: str, hash: int) -> int:
    """Return where the page of a token begins. Raises InvalidRequest for a token of another question."""
    try:
        _, bound, start = struct.unpack(">qIq", base64.urlsafe_b64decode(token.removeprefix("page_")))
    except (ValueError, struct.error):
        bound = None
    if bound != hash:
        raise InvalidRequest(BAD_TOKEN, code="invalid_request_error")
    return int(start)


async def _respond(exchange: HttpExchange, page: Page, found: list[Sums], rows: Any, now: int) -> None:
    question = page.question
    is_empty = question.end <= question.start
    bounds = [] if is_empty else [*edges(question.start, question.end, question.width)][: page.limit]
    results: dict[int, list[dict[str, Any]]] = {start: [] for start in bounds}
    for sums in found:
        results[sums.start] += rows(sums)
    ends = [*bounds[1:], question.end]
    has_more = question.end < question.until
    body = {
        "object": "page",
        "data": [
            {"object": "bucket", "start_time": start, "end_time": end, "results": results[start]}
            for start, end in zip(bounds, ends, strict=False)
        ],
        "has_more": has_more,
        "next_page": _token(now, page.hash, question.end) if has_more else None,
    }
    await respond_json(exchange, body)


def _group(sums: Sums, page: Page, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the group fields of a row: null where it is not grouped by one. A key's id comes with its name."""
    known = {name: bool(value) if name == "batch" else value or None for name, value in sums.group.items()}
    known["service_tier"] = "default"
    group = {name: known.get(name) if name in page.group_by else None for name in names}
    return group | {"api_key_name": known.get("key_name")}


def _usage_row(sums: Sums, page: Page) -> dict[str, Any]:
    uncached = sums.prompt_tokens - sums.cached_tokens
    nothing = (
        *("input_cache_write_tokens", "input_audio_tokens", "input_cached_audio_tokens", "output_audio_tokens"),
        *("input_image_tokens", "input_cached_image_tokens", "output_image_tokens"),
    )
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": sums.prompt_tokens,
        "output_tokens": sums.completion_tokens,
        "num_model_requests": sums.requests,
        "input_cached_tokens": sums.cached_tokens,
        "input_uncached_tokens": uncached,
        "input_text_tokens": uncached,
        "output_text_tokens": sums.completion_tokens,
        "input_cached_text_tokens": sums.cached_tokens,
        **dict.fromkeys(nothing, 0),
        **_group(sums, page, GROUPS),
    }


def _cost_rows(sums: Sums, page: Page) -> list[dict[str, Any]]:
    parts = [("input", sums.prompt_cost, sums.prompt_tokens), ("output", sums.completion_cost, sums.completion_tokens)]
    if "line_item" not in page.group_by:
        parts = [("", sums.prompt_cost + sums.completion_cost, 0)]
    return [
        {
            "object": "organization.costs.result",
            "amount": {"value": cost / 1_000_000, "currency": "usd"},
            **_group(sums, page, COST_GROUPS),
            "line_item": f"{sums.group['model']}, {part}" if part else None,
            "quantity": quantity if part else None,
            "quantity_unit": "tokens" if part else None,
        }
        for part, cost, quantity in parts
    ]


_TIME = {"in": "query", "required": True, "schema": {"type": "integer"}}
_START = {"name": "start_time", "description": "Unix time in seconds.", **_TIME}
_KIND = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "enum": list(KINDS)},
    "description": "What was used. This server has completions; the others are empty.",
}
_EXAMPLE = {"object": "page", "data": [], "has_more": False, "next_page": None}
_ERRORS = ("400", "401", "403", "404")
ROUTES = (
    Route(
        "GET",
        "/v1/organization/usage/{id}",
        Organization.usage,
        operation=get("usage", "Tokens and requests by time, key and model.", schema="UsagePage", errors=_ERRORS),
        example={JSON: _EXAMPLE},
        parameters=(_KIND, _START),
    ),
    Route(
        "GET",
        "/v1/organization/costs",
        Organization.costs,
        operation=get("costs", "Costs by day.", schema="UsagePage", errors=_ERRORS),
        example={JSON: _EXAMPLE},
        parameters=(_START,),
    ),
)
