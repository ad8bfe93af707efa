"""Numbers that people keep: exports of the heat map, the surprise of two texts, the speed of a run. Also templates."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")

from playwright.sync_api import expect

from tests.playground.pages import Playground, open_context

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


def exported(playground: Playground, kind: str, folder: Path) -> bytes:
    with playground.page.expect_download() as download:
        playground.page.get_by_role("button", name=kind, exact=True).click()
    file = folder / f"numbers.{kind.lower()}"
    download.value.save_as(file)
    return file.read_bytes()


def test_the_heat_map_is_exported_as_table_json_and_pictures(playground: Playground, tmp_path: Path) -> None:
    text = "=SUM(1) <b>Lily</b> went home."
    playground.write(text).button("Score").click()
    expect(playground.page.locator(".score")).to_be_visible()
    playground.tab("Numbers")
    rows = list(csv.DictReader(io.StringIO(exported(playground, "CSV", tmp_path).decode())))
    assert not any(row["text"].startswith(("=", "+", "-", "@")) for row in rows)
    assert "".join(row["text"].removeprefix("'") for row in rows) == text
    assert all(row["logprob"] == "" or float(row["logprob"]) <= 0 for row in rows)
    found = json.loads(exported(playground, "JSON", tmp_path))
    assert found["text"] == text and len(found["tokens"]) == len(rows)
    assert found["score"]["bitsPerByte"] > 0
    picture = exported(playground, "SVG", tmp_path)
    assert b"&lt;" in picture and b"<b" not in picture
    assert exported(playground, "PNG", tmp_path).startswith(b"\x89PNG")


def test_the_speed_of_a_run_is_drawn(playground: Playground) -> None:
    playground.set("max_tokens", "40").set("min_tokens", "40").generate().tab("Numbers")
    expect(playground.page.get_by_role("img", name="tokens per second")).to_be_visible()


def test_the_surprise_of_two_texts_is_compared(playground: Playground) -> None:
    playground.show("Compare")
    playground.page.get_by_label("First text").fill("Once upon a time there was a little girl named Lily.")
    playground.page.get_by_label("Second text").fill("Zebra quantum 7x! refrigerator the of of.")
    playground.page.get_by_role("button", name="Compare their surprise").click()
    expect(playground.page.locator(".two-texts [role=status]")).to_contain_text("The first is less surprising")


def test_a_template_is_inserted_as_plain_text(playground: Playground) -> None:
    playground.write("").button("Template").click()
    playground.page.get_by_role("combobox", name="Template").select_option("ChatML")
    playground.page.get_by_label("Request", exact=True).fill("Tell a <b>story</b>.")
    playground.page.get_by_role("button", name="Insert at the end").click()
    expect(playground.page.get_by_role("dialog")).to_have_count(0)
    text = "<|im_start|>user\nTell a <b>story</b>.<|im_end|>\n<|im_start|>assistant\n"
    playground.shows(text)
    assert playground.request_of(playground.generate)["prompt"] == text


def test_the_models_own_template_is_rendered_by_the_server_and_shown_as_text(browser: Browser, instruct: str) -> None:
    context = open_context(browser)
    page = Playground(context.new_page(), instruct).open()
    page.write("").button("Template").click()
    dialog = page.page.get_by_role("dialog")
    expect(dialog.get_by_role("combobox", name="Template")).to_have_value("The model's own")
    dialog.get_by_label("Instructions").fill("Be brief.")
    expect(dialog.get_by_role("alert")).to_contain_text("No <i>system</i> role.")
    expect(dialog.get_by_role("button", name="Insert at the end")).to_be_disabled()
    dialog.get_by_label("Instructions").fill("")
    dialog.get_by_label("Request", exact=True).fill("Tell a <b>story</b>.")
    expect(dialog.get_by_label("What is inserted")).to_have_text("[user] Tell a <b>story</b>. [answer]")
    dialog.get_by_role("button", name="Insert at the end").click()
    page.shows("[user] Tell a <b>story</b>.\n[answer]")
    context.close()
    assert not page.problems
