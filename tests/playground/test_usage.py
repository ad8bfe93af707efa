"""The usage page, over a ledger that is filled before its server starts."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect
from sqlalchemy import URL

from onward.service.keys import create_key
from onward.service.ledger import write_row
from onward.service.limits import Limits
from onward.service.store import open_store
from tests.parity.ledger import ADMIN, DAY, MIDNIGHT
from tests.playground.pages import BACKGROUND, PHONE, Playground, open_context, violations
from tests.processes import served
from tests.service.spool_rows import EMPTY
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
FIRST, LAST = "2024-10-04", "2024-11-17"
"""The days that have usage: more than a page of the endpoint has."""
NUM_DAYS = 45
HOSTILE = '<img src=x onerror="document.title=1">'
KEYS = {"key_a": "alice", "key_b": HOSTILE, "key_c": "=1+1"}


def fill(folder: Path) -> None:
    """Every day two requests of alice, one of which is priced; other keys have fewer."""
    store = open_store(URL.create("sqlite", database=str(folder / "onward.db")))
    with store.begin() as connection:
        create_key(connection, ADMIN, "chief", Limits(), store.clock(), is_admin=True)
        create_key(connection, "sk-alice", "alice", Limits(), store.clock())
        for day in range(NUM_DAYS):
            for number, (key_id, model) in enumerate(
                [("key_a", "tiny"), ("key_a", "large"), ("key_b", "tiny"), ("key_c", "large")][: 2 + day % 3]
            ):
                row = replace(
                    EMPTY, id=f"{day}-{number}", ended_ms=(MIDNIGHT + day * DAY + 40_000) * 1000, key_id=key_id,
                    key_name=KEYS[key_id], model=model, prompt_tokens=1000 * (1 + day % 7), cached_tokens=400,
                    completion_tokens=300 + 10 * day, prompt_cost=200_000 * (model == "large"), completion_cost=100_001,
                )  # fmt: skip
                write_row(connection, row, None, None)
    store.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def ledger(folder: Path) -> Iterator[str]:
    fill(folder)
    with served("--data-dir", str(folder)) as url:
        yield url


@pytest.fixture
def page(browser: Browser, ledger: str) -> Iterator[Playground]:
    context = open_context(browser)
    opened = Playground(context.new_page(), ledger)
    yield opened.open("/usage")
    context.close()
    assert not opened.problems
    assert all(address.startswith((ledger, "blob:")) for address in opened.requests)
    assert not any(ADMIN in address for address in opened.requests)


def sign_in(page: Playground, key: str = ADMIN) -> None:
    page.page.get_by_label("Admin key").fill(key)
    page.page.keyboard.press("Enter")


def show(page: Playground, first: str = FIRST, last: str = LAST) -> None:
    page.page.get_by_label("From", exact=True).fill(first)
    page.page.get_by_label("To", exact=True).fill(last)
    page.page.get_by_role("button", name="Show", exact=True).click()


def filled(page: Playground) -> None:
    sign_in(page)
    show(page)
    expect(page.page.get_by_role("table")).to_be_visible()


def rows_of(page: Playground) -> list[list[str]]:
    return [row.locator("th, td").all_inner_texts() for row in page.page.locator("tbody tr").all()]


def by_command(folder: Path, by: str) -> list[dict[str, Any]]:
    """The output of `onward usage` for the same days."""
    command = [sys.executable, "-m", "onward", "usage", "--data-dir", str(folder), "--by", by, "--format", "json"]
    command += ["--since", FIRST, "--until", "2024-11-18"]
    rows: list[dict[str, Any]] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return rows


def sorted_rows(rows: list[dict[str, Any]]) -> list[str]:
    """JavaScript writes 1.0 as 1."""
    equal = [{name: value if isinstance(value, str) else float(value) for name, value in row.items()} for row in rows]
    return sorted(json.dumps(row, sort_keys=True) for row in equal)


def test_a_key_is_asked_for_and_only_an_admins_opens_the_page(page: Playground) -> None:
    alert = page.page.get_by_role("alert")
    expect(alert).to_have_count(0)
    sign_in(page, "sk-wrong")
    expect(alert).to_have_text("The server does not accept this key.")
    sign_in(page, "sk-alice")
    expect(alert).to_contain_text("This is not an admin key")
    sign_in(page)
    expect(page.page.get_by_text("Nothing was used in this period.")).to_be_visible()
    expect(alert).to_have_count(0)
    kept = page.page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, location.href, document.cookie])"
    )
    assert ADMIN not in kept
    page.open("/usage")
    expect(page.page.get_by_label("Admin key")).to_be_visible()


def test_a_key_is_kept_in_the_tab_only_on_request(page: Playground) -> None:
    page.page.get_by_label("Keep it until").check()
    sign_in(page)
    expect(page.page.get_by_label("From", exact=True)).to_be_visible()
    page.open("/usage")
    expect(page.page.get_by_label("From", exact=True)).to_be_visible()
    page.page.get_by_role("button", name="Another key").click()
    expect(page.page.get_by_label("Admin key")).to_be_visible()
    page.open("/usage")
    expect(page.page.get_by_label("Admin key")).to_be_visible()
    assert ADMIN not in page.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")


def test_the_figures_are_those_of_the_command_line(page: Playground, folder: Path) -> None:
    filled(page)
    for names in (["key"], ["key", "model"], ["key", "model", "day"], ["model", "day"], ["day"]):
        for name in ("Key", "Model", "Day"):
            page.page.get_by_role("checkbox", name=name).set_checked(name.lower() in names)
        with page.page.expect_download() as saved:
            page.page.get_by_role("button", name="Export JSON").click()
        assert saved.value.suggested_filename == f"onward-usage-{FIRST}-{LAST}.json"
        exported = json.loads(Path(saved.value.path()).read_text(encoding="utf-8"))
        wanted = by_command(folder, ",".join(names))
        assert sorted_rows(exported) == sorted_rows(wanted)
        assert len(rows_of(page)) == len(wanted)
    total = sum(row["prompt_tokens"] + row["completion_tokens"] for row in wanted)
    assert f"{total:,}" in page.page.locator("tfoot td").all_inner_texts()


def test_a_table_for_spreadsheets_has_no_formulas(page: Playground) -> None:
    filled(page)
    with page.page.expect_download() as saved:
        page.page.get_by_role("button", name="Export CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text(encoding="utf-8"))))
    assert {row["key"] for row in rows} == {"alice", HOSTILE, "'=1+1"}
    assert all(float(row["cost"]) > 0 and int(row["requests"]) > 0 for row in rows)


def test_names_of_keys_are_text(page: Playground) -> None:
    filled(page)
    assert {row[0] for row in rows_of(page)} == set(KEYS.values())
    assert page.page.locator("img").count() == 0
    assert page.page.title() == "Usage · Onward"


def test_one_key_or_model_can_be_looked_at_alone(page: Playground) -> None:
    filled(page)
    page.page.get_by_role("combobox", name="Key").select_option(label=HOSTILE)
    assert [row[0] for row in rows_of(page)] == [HOSTILE]
    page.page.get_by_role("combobox", name="Model").select_option(label="large")
    expect(page.page.get_by_text("Nothing was used in this period.")).to_be_visible()
    page.page.get_by_role("combobox", name="Key").select_option(label="All keys")
    assert {row[0] for row in rows_of(page)} == {"alice", "=1+1"}


def test_the_plot_has_a_bar_for_each_day_or_week(page: Playground) -> None:
    filled(page)
    bars = page.page.locator(".plot title")  # charts are drawn once their width is known
    expect(bars).to_have_count(NUM_DAYS)
    expect(bars.first).to_have_text(f"{FIRST}: 2 requests, 2,600 billed tokens, 800 of them cached, cost 0.400002")
    expect(page.page.locator("figcaption")).to_contain_text("Each bar is a day.")
    for measure in ("Requests", "Cost", "Billed tokens"):
        page.page.get_by_text(measure, exact=True).first.click()
        expect(page.page.get_by_role("img", name=f"{measure} from {FIRST} to {LAST}")).to_be_visible()
    show(page, "2024-01-01", LAST)
    expect(page.page.locator("figcaption")).to_contain_text("Each bar is 7 days.")
    expect(bars).to_have_count(46)


def test_dates_that_cannot_be_asked_for_are_explained(page: Playground) -> None:
    filled(page)
    show(page, LAST, FIRST)
    expect(page.page.get_by_role("alert")).to_have_text("The last day must not be before the first one.")
    show(page, "2001-01-01", LAST)
    expect(page.page.get_by_role("alert")).to_have_text("Choose at most 1,100 days.")
    show(page)
    expect(page.page.get_by_role("alert")).to_have_count(0)


def test_a_server_without_a_database_says_so(browser: Browser, site: str) -> None:
    context = open_context(browser)
    page = Playground(context.new_page(), site).open("/usage")
    expect(page.page.get_by_role("alert")).to_have_text(
        "This server has no ledger: start it with --data-dir or --database."
    )
    assert not page.problems
    context.close()


def is_answered(page: Playground) -> bool:
    """Show the usage, and return whether the server has summed it."""
    with page.page.expect_response("**/v1/organization/usage/**") as answer:
        show(page)
    return answer.value.ok


def test_a_database_or_a_server_that_is_away_is_reported(page: Playground, folder: Path) -> None:
    filled(page)
    with closing(sqlite3.connect(folder / "onward.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        show(page)
        expect(page.page.get_by_role("alert")).to_contain_text("The database does not answer")
        expect(page.page.get_by_role("table")).to_have_count(0)
    wait_for(lambda: is_answered(page), "the server has seen that the database is back")
    expect(page.page.get_by_role("table")).to_be_visible()
    page.page.route("**/v1/organization/**", lambda route: route.abort())
    show(page)
    expect(page.page.get_by_role("alert")).to_have_text("The server cannot be reached. Is it running?")


def test_everything_works_by_keyboard(page: Playground) -> None:
    keyboard = page.page.keyboard
    page.page.get_by_role("link", name="API reference").focus()
    keyboard.press("Tab")
    keyboard.type(ADMIN)
    keyboard.press("Enter")
    expect(page.page.get_by_label("From", exact=True)).to_be_focused()
    keyboard.type("10042024")
    page.tab_to("To")
    keyboard.type("11172024")
    keyboard.press("Enter")
    expect(page.page.get_by_role("table")).to_be_visible()
    page.tab_to("Day")
    keyboard.press("Space")
    expect(page.page.get_by_role("columnheader", name="Day")).to_be_visible()
    page.tab_to("Export CSV")
    with page.page.expect_download():
        keyboard.press("Enter")
    page.tab_to("Usage as a table")


def key_form(page: Playground) -> None:
    sign_in(page, "sk-wrong")
    expect(page.page.get_by_role("alert")).to_be_visible()


def empty(page: Playground) -> None:
    sign_in(page)
    expect(page.page.get_by_text("Nothing was used")).to_be_visible()


def by_all(page: Playground) -> None:
    filled(page)
    for name in ("Model", "Day"):
        page.page.get_by_role("checkbox", name=name).check()


@pytest.mark.parametrize("device", [{}, PHONE], ids=["1280", "400"])
@pytest.mark.parametrize("view", [key_form, empty, filled, by_all], ids=lambda view: view.__name__)
def test_axe_finds_no_violation(
    browser: Browser, ledger: str, view: Callable[[Playground], None], device: dict[str, Any]
) -> None:
    """Neither in light nor in dark. Also checks that nothing is wider than the screen."""
    context = open_context(browser, reduced_motion="reduce", **device)
    page = Playground(context.new_page(), ledger).open("/usage")
    view(page)
    width = page.page.evaluate("document.documentElement.scrollWidth")
    seen = violations(page.page)
    context.close()
    assert not seen
    assert width <= (400 if device else 1280)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_chosen_on_another_page_applies(browser: Browser, ledger: str, scheme: str) -> None:
    context = open_context(browser, color_scheme="light")
    context.add_init_script(f"localStorage.setItem('onward-theme', '{scheme}')")
    page = Playground(context.new_page(), ledger).open("/usage")
    is_dark = page.page.evaluate(BACKGROUND) == "rgb(24, 26, 29)"
    context.close()
    assert is_dark == (scheme == "dark")
