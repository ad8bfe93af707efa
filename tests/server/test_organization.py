"""Usage and costs in OpenAI's shapes, with its SDKs' parameters: pages, buckets, groups and refusals."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from onward.server.app import App
from onward.server.organization import BAD_TOKEN
from onward.service import recorder
from onward.service.ledger import write_row
from tests.server.fakes import Call, settings
from tests.server.test_running_team import Served, serving
from tests.service.spool_rows import EMPTY

DAY = 86_400
MIDNIGHT = 20_000 * DAY


def keys() -> dict[str, dict[str, Any]]:
    return {"chief": {"is_admin": True}, "a": {}}


async def ask(served: Served, path: str, key: str = "chief", **query: Any) -> Call:
    text = urllib.parse.urlencode(query, doseq=True)
    return await served.get(f"/v1/organization/{path}?{text}", key).done()


def fill(served: Served) -> None:
    """Two requests of one second on day 0, one on day 2, one at its very end; one that failed."""
    times = [(40_000, "m", 200), (40_000, "n", 499), (2 * DAY, "m", 200), (3 * DAY, "m", 200), (40_000, "m", 500)]
    with served.store.begin() as connection:
        for number, (second, model, status) in enumerate(times):
            row = replace(
                EMPTY, id=str(number), ended_ms=(MIDNIGHT + second) * 1000, model=model, status=status, key_id="key_1",
                prompt_tokens=10, cached_tokens=4, completion_tokens=5, prompt_cost=2_500_000, completion_cost=500_000,
            )  # fmt: skip
            write_row(connection, row, None, None)


def test_usage_has_buckets_with_a_row_per_group(tmp_path: Path) -> None:
    from openai.types.admin.organization.usage_completions_response import UsageCompletionsResponse

    async def test(served: Served) -> None:
        fill(served)
        start, end = MIDNIGHT + 39_000, MIDNIGHT + 3 * DAY
        plain = (await ask(served, "usage/completions", start_time=start, end_time=end)).json
        UsageCompletionsResponse.model_validate(plain)
        assert [(each["start_time"], each["end_time"]) for each in plain["data"]] == [
            (start, MIDNIGHT + DAY),
            (MIDNIGHT + DAY, MIDNIGHT + 2 * DAY),
            (MIDNIGHT + 2 * DAY, end),
        ]
        assert (plain["object"], plain["has_more"], plain["next_page"]) == ("page", False, None)
        (first,), empty, (last,) = (each["results"] for each in plain["data"])
        assert empty == []
        counts = ("num_model_requests", "input_tokens", "output_tokens", "input_cached_tokens", "input_text_tokens")
        assert [first[name] for name in counts] == [2, 20, 10, 8, 12]
        assert [last[name] for name in counts] == [1, 10, 5, 4, 6], "what ends at end_time is not counted"
        groups = ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier")
        assert [first[name] for name in groups] == [None] * 6
        filtered = (await ask(served, "usage/completions", start_time=start, end_time=end, models="n")).json
        assert [len(each["results"]) for each in filtered["data"]] == [1, 0, 0]
        with served.store.begin() as connection:
            for number in range(3):
                line = replace(EMPTY, id=f"line{number}", ended_ms=(end - 1) * 1000, batch="batch_1")
                write_row(connection, line, None, None)
        wanted: list[tuple[dict[str, Any], int]] = [({"batch": "true"}, 3), ({"batch": "false"}, 1), ({}, 4)]
        for query, count in wanted:
            days = (await ask(served, "usage/completions", start_time=start, end_time=end, **query)).json["data"]
            assert days[2]["results"][0]["num_model_requests"] == count
        by_batch = (await ask(served, "usage/completions", start_time=start, end_time=end, group_by="batch")).json
        assert [(row["batch"], row["num_model_requests"]) for row in by_batch["data"][2]["results"]] == [
            (False, 1),
            (True, 3),
        ]
        for path, query in (("usage/completions", {"models": "unknown"}), ("usage/embeddings", {})):
            none = (await ask(served, path, start_time=start, end_time=end, **query)).json
            assert [each["results"] for each in none["data"]] == [[], [], []]

    serving(tmp_path, test, keys=keys())


def test_groups_in_every_spelling_of_clients(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        fill(served)
        spellings: list[dict[str, Any]] = [
            {"group_by[]": ["model", "api_key_id", "batch"]},
            {"group_by": ["model", "api_key_id", "batch"]},
            {"group_by": "model,api_key_id,batch"},
            {"group_by[0]": "model", "group_by[1]": "api_key_id", "group_by[2]": "batch"},
        ]
        asked = [await ask(served, "usage/completions", start_time=MIDNIGHT, **each) for each in spellings]
        grouped = [call.json["data"] for call in asked]  # next_page knows when it was made
        assert all(each == grouped[0] for each in grouped)
        assert [(row["model"], row["api_key_id"], row["batch"]) for row in grouped[0][0]["results"]] == [
            ("m", "key_1", False),
            ("n", "key_1", False),
        ]

    serving(tmp_path, test, keys=keys())


def test_a_key_is_named_where_it_is_a_group(tmp_path: Path) -> None:
    """One that was renamed in a key file stays one row."""

    async def test(served: Served) -> None:
        with served.store.begin() as connection:
            for number, name in enumerate(("alice", "alicia")):
                row = replace(
                    EMPTY, id=str(number), ended_ms=MIDNIGHT * 1000, key_id="key_1", key_name=name, prompt_cost=1
                )
                write_row(connection, row, None, None)
        for path in ("usage/completions", "costs"):
            grouped = (await ask(served, path, start_time=MIDNIGHT, group_by="api_key_id")).json["data"][0]["results"]
            assert [(row["api_key_id"], row["api_key_name"]) for row in grouped] == [("key_1", "alicia")]
            plain = (await ask(served, path, start_time=MIDNIGHT)).json["data"][0]["results"]
            assert [row["api_key_name"] for row in plain] == [None]

    serving(tmp_path, test, keys=keys())


def test_the_page_of_usage_is_linked_where_there_is_a_ledger(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        for app, has_ledger in ((served.app, True), (App(served.backend, settings()), False)):
            reference, page = [(await Call(app, "GET", path).done()).body.decode() for path in ("/docs", "/")]
            assert ('href="./usage"' in reference) is has_ledger
            assert (f'"hasLedger": {str(has_ledger).lower()}') in page

    serving(tmp_path, test, keys=keys())


def test_pages_follow_each_other_to_the_end(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        query: dict[str, Any] = {"start_time": MIDNIGHT + 39_000, "end_time": MIDNIGHT + 30 * DAY}
        starts: list[int] = []
        token = ""
        for _ in range(5):
            page = (await ask(served, "usage/completions", **query, **({"page": token} if token else {}))).json
            starts += [each["start_time"] for each in page["data"]]
            assert page["has_more"] is (page["next_page"] is not None)
            if not page["has_more"]:
                break
            assert len(page["data"]) == 7
            token = page["next_page"]
            assert token.startswith("page_")
        assert starts == [MIDNIGHT + 39_000, *(MIDNIGHT + day * DAY for day in range(1, 30))]
        changed = await ask(served, "usage/completions", **query, page=token, group_by="model")
        assert (changed.status, changed.error["message"]) == (400, BAD_TOKEN)
        assert (changed.error["type"], changed.error["code"]) == ("invalid_request_error",) * 2
        alone = await ask(served, "usage/completions", page=token, end_time=query["end_time"])
        assert alone.status == 200, "start_time may be missing where there is a page"

    serving(tmp_path, test, keys=keys())


def test_problems_are_named(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({}, "start_time"),
            ({"start_time": 1, "limit": 32}, "limit"),
            ({"start_time": 1, "limit": 0}, "limit"),
            ({"start_time": 1, "bucket_width": "1w"}, "bucket_width"),
            ({"start_time": 1, "group_by": "colour"}, "group_by"),
            ({"start_time": "soon"}, "start_time"),
            ({"start_time": 5, "end_time": 5}, "end_time"),
            ({"start_time": 1, "batch": "maybe"}, "batch"),
        ]
        for query, param in wrong:
            call = await ask(served, "usage/completions", **query)
            assert (call.status, call.error["param"]) == (400, param), query
        assert (await ask(served, "usage/dreams", start_time=1)).status == 404
        for key in ("a", "file"):
            call = await ask(served, "usage/completions", key, start_time=1)
            assert call.status == 403 and "api.usage.read" in call.error["message"]
        assert (await ask(served, "usage/completions", "wrong", start_time=1)).status == 401

    serving(tmp_path, test, keys=keys(), api_key=("sk-file",))


def test_costs_are_numbers_by_day_and_item(tmp_path: Path) -> None:
    from openai.types.admin.organization.usage_costs_response import UsageCostsResponse

    async def test(served: Served) -> None:
        fill(served)
        query: dict[str, Any] = {"start_time": MIDNIGHT, "end_time": MIDNIGHT + 2 * DAY}
        plain = (await ask(served, "costs", **query)).json
        UsageCostsResponse.model_validate(plain)
        assert [[row["amount"] for row in each["results"]] for each in plain["data"]] == [
            [{"value": 6.0, "currency": "usd"}],
            [],
        ]
        items = (await ask(served, "costs", **query, group_by="line_item")).json["data"][0]["results"]
        assert [(row["line_item"], row["amount"]["value"], row["quantity"], row["quantity_unit"]) for row in items] == [
            ("m, input", 2.5, 10, "tokens"),
            ("m, output", 0.5, 5, "tokens"),
            ("n, input", 2.5, 10, "tokens"),
            ("n, output", 0.5, 5, "tokens"),
        ]

    serving(tmp_path, test, keys=keys())


def test_the_sums_are_the_usage_that_clients_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "GATHER_SECONDS", 0.01)

    async def test(served: Served) -> None:
        seen = 0
        for _ in range(3):
            seen += (await served.complete("a").done()).json["usage"]["total_tokens"]
        await served.settled()
        page = (await ask(served, "usage/completions", start_time=served.team.now_ms // 1000 - 60)).json
        rows = [row for bucket in page["data"] for row in bucket["results"]]
        assert sum(row["input_tokens"] + row["output_tokens"] for row in rows) == seen > 0
        assert sum(row["num_model_requests"] for row in rows) == 3

    serving(tmp_path, test, keys=keys())


def test_names_of_models_are_returned_unchanged(tmp_path: Path) -> None:
    names = ["q\"uote 'n", "new\nline", "modèle 世界 😀", "100% a%2Fb&c=d", "org/name", "{id}", "a,b", "</script>"]

    async def test(served: Served) -> None:
        with served.store.begin() as connection:
            for number, name in enumerate(names):
                write_row(connection, replace(EMPTY, id=str(number), ended_ms=MIDNIGHT * 1000, model=name), None, None)
        query: dict[str, Any] = {"start_time": MIDNIGHT, "end_time": MIDNIGHT + DAY}
        (day,) = (await ask(served, "usage/completions", **query, group_by="model")).json["data"]
        assert {row["model"]: row["num_model_requests"] for row in day["results"]} == dict.fromkeys(names, 1)
        for name in names:
            call = await ask(served, "usage/completions", **query, **{"models[]": name}, group_by="model")
            (day,) = call.json["data"]
            assert [row["model"] for row in day["results"]] == [name]

    serving(tmp_path, test, keys=keys())
