"""A model for code behind `onward serve`: lines filled in are run, a `prediction` saves steps and changes nothing."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.edits import CODE

from tests.processes import served
from tests.real_models.fetch import LARGE_MODELS, fetched
from tests.real_models.infill import HOLES, Hole, is_right

pytestmark = [pytest.mark.slow, pytest.mark.companion]

MIN_HOLES = 20
MIN_RIGHT = 0.6
"""Of the lines filled in. Without the code after them, most of these lines cannot be known."""
MAX_STEPS = 0.6
"""With a prediction, of the steps without any draft."""
FIRST_MODEL = "gpt-3.5-turbo-instruct"
"""A name of the server's only model."""
EDIT = (
    "<|im_start|>user\nRename the class StopFinder to StopScanner in this code and change nothing else. "
    "Answer with the code only.\n\n```python\n{code}\n```<|im_end|>\n<|im_start|>assistant\n```python\n"
)


@pytest.fixture(scope="module")
def path() -> str:
    return str(fetched(LARGE_MODELS[0]))


@pytest.fixture(scope="module")
def url(path: str) -> Iterator[str]:
    with served("--kv-memory", "400MB", model=path) as url:
        yield url


def complete(url: str, **body: Any) -> dict[str, Any]:
    text = json.dumps({"model": FIRST_MODEL, "temperature": 0, **body}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", text, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def num_steps(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.search(r"^onward_engine_steps_total\{.*\} (\d+)", text, re.MULTILINE)
    assert found, text
    return int(found[1])


def filled_in(url: str, hole: Hole) -> str:
    before, after = hole.source()
    choice = complete(url, prompt=before, suffix=after, max_tokens=40, stop="\n")["choices"][0]
    return str(choice["text"])


def test_filled_in_lines_do_what_the_original_does(url: str) -> None:
    right, wrong = 0, []
    for number, hole in enumerate(HOLES):
        try:
            line = filled_in(url, hole)
        except LookupError:
            continue
        if is_right(number, line):
            right += 1
        else:
            wrong.append((hole.function, hole.line, line))
    assert right + len(wrong) >= MIN_HOLES
    assert right >= MIN_RIGHT * (right + len(wrong)), wrong


def test_an_edit_with_a_prediction_has_the_same_bytes_in_fewer_steps(url: str, path: str) -> None:
    code = CODE[: CODE.index("    def feed")].rstrip()
    body: dict[str, Any] = {"prompt": EDIT.format(code=code), "max_tokens": 300, "stop": "\n```"}
    predicted = counted(url, body | {"prediction": {"type": "content", "content": code}})
    with served("--kv-memory", "400MB", "--speculation", "off", model=path) as plain:
        expected = counted(plain, body)
    assert predicted[0] == expected[0]
    assert "class StopScanner" in expected[0]
    assert predicted[1] <= MAX_STEPS * expected[1], f"{predicted[1]} of {expected[1]} steps"


def counted(url: str, body: dict[str, Any]) -> tuple[str, int]:
    """The text of an answer, and how many steps the engine took for it."""
    before = num_steps(url)
    return str(complete(url, **body)["choices"][0]["text"]), num_steps(url) - before
