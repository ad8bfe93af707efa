"""A model's name may be anything that a file system takes: no route, header, page, metric or log line breaks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from onward.api.dialects import DIALECTS
from onward.compose import compose
from onward.errors import SetupError
from onward.server.app import ROUTES, App
from onward.settings import Settings, resolve
from tests.cli.terminal import COMMAND
from tests.processes import server_process
from tests.server.fakes import Call, events, in_loop
from tests.test_compose import toy_folder

pytestmark = pytest.mark.skipif(sys.getfilesystemencoding() != "utf-8", reason="names of files are not in UTF-8 here")
FOLDERS = (
    "q\"uote 'n`", "new\nline\r\x1b[31m\x07", "modèle à 世界 😀", "100% a%2Fb%0A", "<img src=x onerror=alert(1)>",
    "a?b=c#d&e;f", "{id}", "back\\slash\\n", "\x7f\x80\u2028\u202e\ufeff", " a: b,  c", "completions",
)  # fmt: skip
"""Names of folders with models, which are the models' ids."""
ALIASES = ('org/"quo\\ted" /é/', "</script><script>alert(1)</script>", "%2F/../%00", "-x")
NAMES = (*FOLDERS, *ALIASES)
TEXT: dict[str, Any] = {"max_tokens": 2, "temperature": 0}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", **TEXT},
    "/openai/v1/completions": {"prompt": "a", **TEXT},
    "/v1/engines/{id}/completions": {"prompt": "a", **TEXT},
    "/m/{id}/v1/completions": {"prompt": "a", **TEXT},
    "/tokenize": {"prompt": "a"},
    "/m/{id}/tokenize": {"prompt": "a"},
    "/m/{id}/detokenize": {"tokens": [97]},
    "/completion": {"prompt": "a", "n_predict": 2},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "/api/generate": {"prompt": "a", "stream": False, "options": {"num_predict": 2}},
    "/api/show": {},
    "/v1/fim/completions": {"prompt": "a", **TEXT},
}
"""What is sent to the routes that take a model's name, in the body or in the path."""
NAMED = ("id", "model", "name")


def answers(name: str) -> str:
    """The id of the model that answers to a name."""
    return FOLDERS[0] if name in ALIASES else name


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[App]:
    """An application with a model for each folder, and its aliases."""
    models = tuple(toy_folder(folder / name) for name in FOLDERS)
    settings = Settings(model=models, alias=tuple((alias, models[0]) for alias in ALIASES), access_log=True)
    backend = compose(settings)
    try:
        yield App(backend, settings)
    finally:
        await backend.aclose()


class Tags(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def names_in(value: Any) -> Iterator[str]:
    """The values of fields that name models, and the keys of objects."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key in NAMED and isinstance(inner, str):
                yield inner
            yield from names_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names_in(inner)


async def asked(app: App, method: str, path: str, fields: dict[str, Any] | None = None) -> Call:
    """The whole answer to a request for a path, which may contain anything. Its headers are visible ASCII."""
    call = Call(app, method, "/", json.dumps(fields).encode())
    call.scope["path"] = path
    await call.done()
    assert call.status < 500, (path, call.body)
    for name, value in call.sent[0]["headers"]:
        assert re.fullmatch(rb"[a-z0-9-]+", name) and re.fullmatch(rb"[\x20-\x7e]*", value), (name, value)
    return call


@in_loop
async def test_each_route_answers_by_the_name_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with served(tmp_path) as app:
        for name in NAMES:
            for path, fields in BODIES.items():
                body = fields if "{id}" in path else {"model": name, **fields}
                call = await asked(app, "POST", path.replace("{id}", name), body)
                assert call.status == 200, (name, path, call.body)
                assert call.json.get("model", name) in (answers(name), name), (path, call.body)
            stream = await asked(app, "POST", "/v1/completions", {"model": name, "prompt": "a", "stream": True, **TEXT})
            chunks = [chunk for chunk in events(stream.body) if isinstance(chunk, dict)]
            assert {chunk["model"] for chunk in chunks} == {answers(name)}
            for path in ("/v1/models/", "/openai/v1/models/", "/v1/engines/"):
                assert (await asked(app, "GET", path + name)).json["id"] == name
            assert (await asked(app, "GET", f"/m/{name}/tokenizer_info")).json["vocab_size"] > 200
    lines = [each.getMessage() for each in caplog.records if each.name == "onward.access"]
    assert len(lines) == len(NAMES) * (len(BODIES) + 5)
    assert {len(re.findall(r"(?:^| )[a-z_]+=", line)) for line in lines} == {15}, "no name forges a pair"


@in_loop
async def test_lists_pages_and_metrics_have_the_names_as_they_are(tmp_path: Path) -> None:
    async with served(tmp_path) as app:
        for name in FOLDERS:
            assert (await asked(app, "POST", "/v1/completions", {"model": name, "prompt": "a", **TEXT})).status == 200
        found: dict[str, Any] = {}
        for route in (*ROUTES, *(each for routes in DIALECTS.values() for each in routes)):
            if route.method == "GET" and "{id}" not in route.path:
                call = await asked(app, "GET", route.path)
                is_json = call.headers["content-type"].startswith("application/json")
                found[route.path] = call.json if is_json else call.body.decode()
        for path, expected in {
            "/v1/models": NAMES, "/openai/v1/models": NAMES, "/v1/engines": NAMES, "/api/tags": NAMES, "/api/ps": NAMES,
            "/health": FOLDERS,
        }.items():  # fmt: skip
            assert set(expected) <= set(names_in(found[path])), path
        page, plain = Tags(found["/"]), Tags(re.sub("|".join(map(re.escape, NAMES)), "x", found["/"]))
        assert page.names.count("script") == plain.names.count("script") == 2 and "img" not in page.names
        assert all(name.replace("\r", "\n") in page.text.replace("\r", "\n") for name in NAMES if "/" not in name)
        labels = {
            sample.labels["model"]
            for family in text_string_to_metric_families(found["/metrics"])
            for sample in family.samples
            if sample.name == "onward_completion_tokens_total"
        }
        assert labels == set(FOLDERS)


REFUSED = ("bad\udcff", "new\nline", "a\x1b[1m", "a\x00b", "\u202e", "a\u2028b")


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_nobody_could_see_or_send_is_refused(name: str, tmp_path: Path) -> None:
    for flags in ({"--alias": f"{name}=toy"}, {"--lora": f"{name}=adapter"}, {"--tokenizer": f"{name}=toy"}):
        with pytest.raises(SetupError, match="must have a NAME of printable characters"):
            resolve({flag.removeprefix("--"): [text] for flag, text in flags.items()})
    with pytest.raises(SetupError, match="must consist of printable characters"):
        compose(Settings(model=(f"{name}=llama+http://127.0.0.1:1",)))


@pytest.mark.slow
def test_served_names_are_the_same_over_sockets(tmp_path: Path) -> None:
    """By HTTP clients, OpenAI's, and the command line; and the line that says that the server is ready is one."""
    models = [toy_folder(tmp_path / name) for name in FOLDERS]
    flags = [word for model in models[1:] for word in ("--model", model)]
    flags += [word for alias in ALIASES for word in ("--alias", f"{alias}={models[0]}")]
    with server_process(*flags, "--engine-process", "off", model=models[0]) as server:
        [ready] = [line for line in server.output if line.startswith("Onward is ready at ")]
        assert ready.rstrip().endswith(").") and ready.rstrip("\n").isprintable()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            assert {model.id for model in client.models.list()} >= set(NAMES)
            for name in NAMES:
                assert client.models.retrieve(name).id == name
                assert client.completions.create(model=name, prompt="a", **TEXT).model == answers(name)
        for name in NAMES:
            answer = httpx2.post(f"{server.url}/m/{quote(name, safe='')}/v1/completions", json={"prompt": "a", **TEXT})
            assert (answer.status_code, answer.json()["model"]) == (200, answers(name))
            info = httpx2.get(f"{server.url}/tokenizer_info", params={"model": name})
            assert info.status_code == 200, (name, info.text)
        environment = {**os.environ, "ONWARD_BASE_URL": f"{server.url}/v1"}
        for arguments in (
            ("models", "list", "--format", "pretty"),
            ("doctor", "--server", server.url, "--format", "text"),
        ):
            done = subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, check=False, text=True)
            assert "Traceback" not in done.stderr
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.stdout + done.stderr), arguments
