"""The page at `/` in Chromium: first paint, a heat map of many tokens, edits and scrolling in it, and branching.

`python -m benchmarks.playground` starts `onward serve` with the built-in model. The heat map's tokens come from the
benchmark instead of the engine, so that only the page is measured. Needs Playwright (the extra `browser`) and Chromium
(`--chromium PATH`); without a graphics processor, Chromium draws on the processor that everything else runs on.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks import measure
from benchmarks.server_process import serve

PATIENCE_MS = 120_000
NUM_FRAMES, NUM_EDITS = 240, 100
VIEW = "document.querySelector('.editor .cm-content').cmTile.view"
SCROLL = """frames => new Promise(resolve => {
  const scroller = document.querySelector('.editor .cm-scroller'), times = [];
  scroller.scrollTop = 0;
  let last = performance.now();
  const step = now => {
    times.push(now - last);
    last = now;
    scroller.scrollTop += 120;
    if (times.length < frames) requestAnimationFrame(step); else resolve(times.slice(2));
  };
  requestAnimationFrame(step);
})"""
EDIT = f"""edits => {{
  const view = {VIEW}, times = [];
  for (let count = 0; count < edits; count += 1) {{
    const from = Math.floor(view.state.doc.length / 2) + count, began = performance.now();
    view.dispatch({{changes: {{from, insert: 'x'}}, userEvent: 'input.type'}});
    view.contentDOM.getBoundingClientRect();
    times.push(performance.now() - began);
  }}
  return times;
}}"""
"""The script and layout of an edit in the middle of the document, as typing causes them."""


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("playground", __doc__)
    parser.add_argument("--tokens", type=int, default=100_000, help="tokens of the heat map (default 100000)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    return parser


def main(arguments: argparse.Namespace, report: measure.Report) -> None:
    with serve("storyteller") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        url = server.url.removesuffix("v1")
        figures = {
            "browser": browser.version,
            "first_paint_ms": measure.median_of([first_paint(browser, url) for _ in range(arguments.rounds)]),
            "heat_map": heat_map(browser, url, arguments.tokens),
            "branch_first_token_ms": measure.median_of(branches(browser, url, 3 * arguments.rounds)),
        }
        browser.close()
    print(json.dumps(figures, indent=2))
    report(figures)


def open_page(browser: Browser, url: str, *, context: int | None = None) -> Page:
    """Return the page in a profile of its own, so that nothing is cached. `context`: the context length that the model
    seems to have."""
    page = browser.new_context().new_page()
    page.set_default_timeout(PATIENCE_MS)
    if context is not None:
        facts = {"model_max_length": context, "additional_special_tokens": [], "vocab_size": 8192, "infill": True}
        page.route("**/tokenizer_info*", lambda route: route.fulfill(json=facts))
    page.goto(url)
    page.wait_for_selector("html[data-ready]", state="attached")
    return page


def first_paint(browser: Browser, url: str) -> float:
    """Return milliseconds from the navigation to the first text on the screen."""
    page = open_page(browser, url)
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    paint: float = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.context.close()
    return paint


def heat_map(browser: Browser, url: str, num_tokens: int) -> dict[str, Any]:
    """Score a text of many tokens; return what the page did with them, in milliseconds."""
    page = open_page(browser, url, context=2 * num_tokens)
    text, events = scored_stream(num_tokens)
    page.evaluate(f"text => {VIEW}.dispatch({{changes: {{from: 0, to: {VIEW}.state.doc.length, insert: text}}}})", text)
    page.route("**/v1/completions", lambda route: route.fulfill(body=events, content_type="text/event-stream"))
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def busy_ms() -> float:
        """The time that the page's main thread has worked: scripts, parsing, layout, painting."""
        metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        return 1000 * float(metrics["TaskDuration"])

    before = busy_ms()
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Score").click()
    page.wait_for_selector(".score")
    scoring = busy_ms() - before
    frames = page.evaluate(SCROLL, NUM_FRAMES)
    edits = page.evaluate(EDIT, NUM_EDITS)
    page.context.close()
    return {
        "tokens": num_tokens,
        "characters": len(text),
        "main_thread_ms": round(scoring, 1),
        "scrolling_frame_ms": measure.spread(frames),
        "frames_over_17_ms": sum(frame > 17.5 for frame in frames) / len(frames),
        "edit_ms": measure.spread(edits),
    }


def scored_stream(num_tokens: int) -> tuple[str, str]:
    """Return a text of lines, and the events of a stream that scores it, with five alternatives per token."""
    drawn = random.Random(7)
    words = [" the", " moon", " and", "ing", " star", ",", " garden", " said", "ly", " fox"]
    tokens = [drawn.choice(words) if index % 60 else "\n" for index in range(num_tokens)]
    text = "".join(tokens)
    offsets, offset = [], 0
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    values = [round(-drawn.expovariate(0.5), 4) for _ in tokens]
    top = [{word: -1.0 - rank for rank, word in enumerate(words[:5])} for _ in tokens]
    logprobs = {"tokens": tokens, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": "length"}
    return text, f"id: 1\ndata: {json.dumps({'id': 'cmpl-1', 'choices': [choice]})}\n\nid: 2\ndata: [DONE]\n\n"


def branches(browser: Browser, url: str, count: int) -> list[float]:
    """Branch on alternatives; return milliseconds from the request to the first token, as the page saw them."""
    page = open_page(browser, url)
    page.get_by_role("button", name="Probabilities").click()
    page.get_by_text("Probability", exact=True).click()
    page.keyboard.press("Escape")
    page.get_by_role("textbox", name="Document").focus()
    page.keyboard.press("Control+Enter")
    found = []
    for number in range(1, count + 1):
        page.wait_for_selector(f"html[data-completions='{number}']", state="attached")
        page.locator(".editor .generated").nth(number % 7).hover()
        page.locator(".alternatives .choice:enabled").nth(1).click()
        page.wait_for_selector(f"html[data-completions='{number + 1}']", state="attached")
        shown = page.locator(".meter div:has(dt:text-is('first token')) dd").inner_text()
        found.append(float(shown.removesuffix(" ms")))
    page.context.close()
    return found


if __name__ == "__main__":
    measure.run(arguments(), main)
