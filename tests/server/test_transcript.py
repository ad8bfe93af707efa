"""The log of requests: requests and answers by key, without anything withheld or excluded."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

from onward.completions.filters import make_filters
from onward.server.app import App
from onward.server.transcript import CollectedChoices
from onward.service.request_log import LoggedRequest, RequestFolder, RequestLog, read_folder
from onward.service.request_table import RequestTable, read_requests
from onward.service.team import Team
from onward.values import ContentFilterSetting
from tests.backends.scripted_engine import Script, ScriptedEngine, backend_over, decoding, endless
from tests.server.fakes import completion, delta, in_loop, settings
from tests.service.databases import store_with

DAY = 86_400


def serving(
    request_log: RequestLog, script: Script, test: Callable[[App], Coroutine[Any, Any, None]], team: Team | None = None
) -> Coroutine[Any, Any, None]:
    async def run() -> None:
        filters = make_filters([ContentFilterSetting("secrets", ("qq.",))])
        async with aclosing(backend_over(ScriptedEngine(script), filters)) as backend:
            await test(App(backend, settings(), team=team, request_log=request_log))

    return run()


def logged(folder: Path, script: Script, **fields: Any) -> list[LoggedRequest]:
    """Return the entry of one request in a folder."""
    log = RequestFolder(folder, "here", DAY)

    async def test(app: App) -> None:
        await completion(app, **{"model": "toy", "prompt": "ab", "ignore_eos": False, **fields}).done()

    in_loop(lambda: serving(log, script, test))()
    log.close()
    return list(read_folder(folder))


def test_a_request_is_logged_with_its_answer_and_its_seed(tmp_path: Path) -> None:
    for stream in (False, True):
        folder = tmp_path / str(stream)
        (found,) = logged(folder, decoding("abc", "xyz"), n=2, max_tokens=3, stream=stream)
        assert [(each["index"], each["text"], each["finish_reason"]) for each in found.choices] == [
            (0, "abc", "length"),
            (1, "xyz", "length"),
        ]
        assert found.body["prompt"] == "ab" and found.body["max_tokens"] == 3
        assert (found.route, found.model, found.status, found.completion_tokens) == ("/v1/completions", "toy", 200, 6)
        assert found.fingerprint == "fp_scripted" and isinstance(found.seed, int)
        (path,) = folder.glob("no-key/*.jsonl")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_filter_withheld_is_not_kept(tmp_path: Path) -> None:
    (found,) = logged(tmp_path, decoding("a qqz b"), max_tokens=7)
    assert [(each["text"], each["finish_reason"]) for each in found.choices] == [("a ", "content_filter")]
    assert "qq" not in "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*/*"))


def test_a_client_that_left_is_logged_as_far_as_it_got(tmp_path: Path) -> None:
    log = RequestFolder(tmp_path, "here", DAY)

    async def test(app: App) -> None:
        call = completion(app, model="toy", prompt="ab", stream=True, max_tokens=500, ignore_eos=False)
        await call.until(3)
        call.leave()
        await call.done()

    in_loop(lambda: serving(log, endless, test))()
    log.close()
    (found,) = read_folder(tmp_path)
    assert set(found.choices[0]["text"]) == {"a"} and found.choices[0]["finish_reason"] is None


def test_a_database_logs_all_keys_but_those_that_opted_out_and_forgets_old_requests(tmp_path: Path) -> None:
    with store_with(tmp_path, alice={}, bob={"logs_requests": False}) as store:

        @in_loop
        async def run() -> None:
            team = Team(store, tmp_path, keep_requests_seconds=1)

            async def test(app: App) -> None:
                for key in ("alice", "bob"):
                    headers = {"authorization": f"Bearer sk-{key}"}
                    call = await completion(app, headers=headers, model="toy", prompt=key, max_tokens=2).done()
                    assert call.status == 200

            await serving(RequestTable(team.log_request), decoding("ab"), test, team)
            await team._poll()  # after what was submitted before
            found = list(read_requests(store))
            assert [(each.key_name, each.body["prompt"]) for each in found] == [("alice", "alice")]
            store.clock = lambda: found[0].at_ms + 2000
            await team._forget_old_rows()
            assert list(read_requests(store)) == []
            team.close()

        run()


def test_lines_that_are_not_whole_are_left_out_and_old_files_deleted(tmp_path: Path) -> None:
    (found,) = logged(tmp_path, decoding("ab"), max_tokens=2)
    (path,) = tmp_path.glob("*/*.jsonl")
    path.write_bytes(path.read_bytes() + path.read_bytes()[:50] + b"\n" + json.dumps({"a": 1}).encode())
    assert list(read_folder(tmp_path)) == [found]
    RequestFolder(tmp_path, "other", DAY).close()
    assert path.exists()
    os.utime(path, (1, 1))
    RequestFolder(tmp_path, "other", DAY).close()
    assert not path.exists()


def test_too_many_waiting_requests_are_lost_not_waited_for(tmp_path: Path, caplog: Any) -> None:
    (found,) = logged(tmp_path / "a", decoding("ab"), max_tokens=2)
    log = RequestFolder(tmp_path / "b", "here", DAY)
    log.close()  # nothing more is written
    for _ in range(10_003):
        log.add(found)
    assert "requests are not in the log of requests" in caplog.text


def test_a_file_that_is_deleted_while_the_folder_is_read_is_left_out(tmp_path: Path) -> None:
    (found,) = logged(tmp_path, decoding("ab"), max_tokens=2)
    (path,) = tmp_path.glob("*/*.jsonl")
    later = path.with_name("9999-" + path.name)
    later.write_bytes(path.read_bytes())
    reading = read_folder(tmp_path)
    assert next(reading) == found
    later.unlink()
    assert list(reading) == []


def cut(**limits: int) -> tuple[CollectedChoices, list[tuple[int, str, str | None]]]:
    choices = CollectedChoices(**limits)
    for _ in range(3):
        choices.add([*delta("ab"), *delta("cd", 1), *delta("", 2)])
    choices.add(delta("", 1, "stop"))
    return choices, list(choices.texts())


def test_texts_of_choices_are_cut_as_they_grow() -> None:
    choices, texts = cut()
    assert texts == [(0, "ababab", None), (1, "cdcdcd", "stop"), (2, "", None)]
    for limits, kept in (
        ({"max_text": 3}, [(0, "aba", None), (1, "cdc", "stop"), (2, "", None)]),
        ({"max_choices": 1, "max_text": 3}, [(0, "aba", None)]),
        ({"max_choices": 0}, []),
    ):
        choices, texts = cut(**limits)
        assert texts == kept and choices.reasons == ["stop"]
        held = sum(len(text) for texts in choices._texts.values() for text in texts)
        assert held == sum(len(text) for _, text, _ in kept)
