"""`onward verify`: saved answers, computed again."""

from __future__ import annotations

import json
import signal
import sqlite3
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.examples import slow_but
from tests.waiting import PATIENCE_SECONDS, wait_for

from ...listening import served_here
from ..conftest import onward
from ..scripted import answer, completion, scripted
from ..terminal import Terminal

SHAPES: dict[str, dict[str, Any]] = {
    "seeded": {"seed": 3, "temperature": 1},
    "drawn": {"temperature": 1},
    "several": {"prompt": ["Once", "Once", "Twice"], "n": 2, "best_of": 3, "temperature": 1},
    "echo": {"echo": True, "logprobs": 2, "temperature": 1},
    "scored": {"echo": True, "logprobs": 1, "max_tokens": 0},
    "greedy": {"temperature": 0},
    "stop": {"stop": ["e"], "max_tokens": 60, "temperature": 1},
    "sampled": {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "temperature": 1.5, "frequency_penalty": 1},
}


def batch(**flags: Any) -> tuple[str, str]:
    """Run a batch of all shapes; return its files."""
    lines = [
        {"custom_id": name, "body": {"model": "toy", "prompt": "Once upon", "max_tokens": 12, **fields}}
        for name, fields in SHAPES.items()
    ]
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    ran = onward("batch", "run", "in.jsonl", "-o", "out.jsonl", *flags.get("more", ()))
    assert ran.exit_code == 0, ran.stderr
    return "in.jsonl", "out.jsonl"


def change(edit: Callable[[dict[str, Any]], None], only: str = "drawn") -> None:
    """Change a result of the batch."""
    lines = [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if line["custom_id"] == only:
            edit(line)
    Path("out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def verdicts(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    ran = onward("verify", *arguments, "--format", "json")
    assert ran.stdout, ran.stderr
    found = json.loads(ran.stdout)
    assert found["total"] == len(found["data"]) == found["same"] + found["different"] + found["unknown"]
    return ran.exit_code, {each["id"]: each for each in found["data"]}


def test_answers_of_a_batch_are_found_to_be_the_same() -> None:
    code, found = verdicts(*batch())
    assert code == 0 and {each["verdict"] for each in found.values()} == {"same"} and set(found) == set(SHAPES)
    one = found["drawn"]
    assert one["system_fingerprint"] == one["computed_fingerprint"] and one["reason"] is one["difference"] is None


def test_answers_of_this_process_are_verified_on_a_server_and_the_other_way_around(server: str) -> None:
    files = batch()
    assert verdicts(*files, "--base-url", server)[0] == 0
    Path("out.jsonl").unlink()
    batch(more=("--base-url", server))
    assert verdicts(*files)[0] == 0


def test_a_difference_is_shown_where_it_begins() -> None:
    files = batch()

    def edit(line: dict[str, Any]) -> None:
        choice = line["response"]["body"]["choices"][1]
        choice["text"] = choice["text"][:4] + "#" + choice["text"][5:]

    change(edit, "several")
    code, found = verdicts(*files)
    assert code == 1 and found["several"]["verdict"] == "different"
    difference = found["several"]["difference"]
    assert (difference["choice"], difference["field"], difference["character"]) == (1, "text", 4)
    assert difference["saved"].startswith("#") and not difference["computed"].startswith("#")
    ran = onward("verify", *files, "--format", "text")
    assert ran.exit_code == 1
    assert "several  different  choice 1, character 4: '#" in ran.stdout
    assert f"{len(SHAPES) - 1} of {len(SHAPES)} the same, 1 different, 0 unknown." in ran.stdout


@pytest.mark.parametrize(
    ("edit", "only", "reason"),
    [
        (
            lambda body: body.update(system_fingerprint="fp_0123456789ab"),
            "drawn",
            "other weights, precision or version",
        ),
        (lambda body: body.pop("system_fingerprint"), "drawn", "no system_fingerprint"),
        (lambda body: body.update(system_fingerprint="fp_vllm_0123456789ab"), "drawn", "does not promise"),
        (lambda body: body.update(model="none"), "drawn", "none"),
        (lambda body: body.update(choices=7), "drawn", "the answer is not a completion"),
    ],
)
def test_what_cannot_be_verified_has_a_reason(edit: Callable[[dict[str, Any]], None], only: str, reason: str) -> None:
    files = batch()
    change(lambda line: edit(line["response"]["body"]), only)
    code, found = verdicts(*files)
    assert code == 6
    assert [each["verdict"] for each in found.values()].count("unknown") == 1
    assert found[only]["verdict"] == "unknown" and reason in found[only]["reason"]


def test_without_a_seed_only_greedy_answers_are_verified() -> None:
    files = batch()
    for name in SHAPES:
        change(lambda line: line["response"].pop("seed", None), name)
    code, found = verdicts(*files)
    known = {name for name, each in found.items() if each["verdict"] == "same"}
    assert code == 6 and known == {"seeded", "greedy", "scored"}
    assert "no seed" in found["drawn"]["reason"]


def test_a_server_that_does_not_know_the_header_says_nothing_of_a_drawn_seed() -> None:
    files = batch()
    body = json.loads(Path("out.jsonl").read_text(encoding="utf-8").splitlines()[0])["response"]["body"]
    with scripted(answer(200, {**completion("x"), "system_fingerprint": body["system_fingerprint"]})) as other:
        _, found = verdicts(*files, "--base-url", other.url)
    assert found["drawn"]["verdict"] == "unknown" and "which seed is drawn" in found["drawn"]["reason"]
    assert found["seeded"]["verdict"] == "different"


def test_another_model_may_be_named() -> None:
    files = batch()
    for name in SHAPES:
        change(lambda line: line["response"]["body"].update(model="renamed"), name)
    assert verdicts(*files)[0] == 6
    assert verdicts(*files, "--model", "toy")[0] == 0


REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "toy", "prompt": ["Once", "Once"], "n": 2, "temperature": 1, "echo": True},
    "/v1/engines/toy/completions": {"prompt": "Once", "temperature": 1, "stream": True},
    "/completion": {"prompt": "Once upon", "n_predict": 20},
    "/v1/fim/completions": {"model": "toy", "prompt": "Once upon", "max_tokens": 20, "temperature": 1},
    "/api/generate": {"model": "toy", "prompt": "Once upon", "options": {"num_predict": 20}},
    "/tabby/v1/completions": {"language": "text", "segments": {"prefix": "Once upon"}, "temperature": 1},
    "/generate": {"inputs": "Once upon", "parameters": {"do_sample": True, "max_new_tokens": 20}},
}


@pytest.mark.parametrize("kind", slow_but(["database"], ["folder", "database"]))
def test_logged_answers_of_every_api_are_found_to_be_the_same(kind: str, tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    log = ("--log-requests", "database" if kind == "database" else str(tmp_path / "log"))
    with served_here(*data, *log, "--dialects", "all") as url:
        for path, fields in REQUESTS.items():
            sent = urllib.request.Request(url + path, json.dumps(fields).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(sent) as response:
                assert response.read() and response.headers["onward-seed"]
    where = [*log, *(data if kind == "database" else ())]
    code, found = verdicts(*where)
    assert (code, len(found)) == (0, len(REQUESTS)), found
    if kind == "folder":
        assert verdicts(str(tmp_path / "log"))[0] == 0
        with served_here() as url:
            code, found = verdicts(*where, "--base-url", url + "/v1")
        assert code == 6 and [each["verdict"] for each in found.values()].count("same") == 2
        ids = list(found)
        assert onward("requests", "replay", ids[0], *where).exit_code == 0
    else:
        with closing(sqlite3.connect(tmp_path / "data/onward.db")) as database, database:
            database.execute("UPDATE request_log SET document = replace(document, 'Once', 'Twice')")
        assert verdicts(*where)[0] == 1


def test_a_story_of_the_playground_is_found_to_be_the_same() -> None:
    settings = {"max_tokens": 12, "temperature": 1.2, "n": 2}

    def generated(prompt: str, **fields: Any) -> dict[str, Any]:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**settings, **fields}.items()]
        ran = onward("completions", "create", "--model", "toy", "--prompt", prompt, *flags, "--format", "json")
        assert ran.exit_code == 0, ran.stderr
        document: dict[str, Any] = json.loads(ran.stdout)
        return document

    first = generated("Once upon", seed=5)
    texts = [choice["text"] for choice in first["choices"]]
    run = {
        "model": "toy",
        "settings": settings,
        "seed": 5,
        "fingerprint": first["system_fingerprint"],
        "finish": "length",
    }
    second = generated("Once upon" + texts[0], seed=5)["choices"][0]["text"]
    nodes = [
        {"id": 1, "parent": None, "origin": "written", "text": "Once upon"},
        {"id": 2, "parent": 1, "origin": "generated", "text": texts[0], "run": run},
        {"id": 3, "parent": 1, "origin": "generated", "text": texts[1][:5], "run": run},
        {"id": 4, "parent": 3, "origin": "generated", "text": texts[1][5:], "run": run},
        {"id": 5, "parent": 2, "origin": "generated", "text": second, "run": run},
        {"id": 6, "parent": 3, "origin": "written", "text": " changed by hand"},
    ]
    story = {"format": "onward-story", "version": 1, "title": "Fox", "nodes": nodes, "notes": {}, "current": 1}
    Path("fox.json").write_text(json.dumps(story, indent=1), encoding="utf-8")
    code, found = verdicts("fox.json")
    assert (code, set(found)) == (0, {"Fox, node 2", "Fox, node 4", "Fox, node 5"}), found
    nodes[1]["text"] = "no"
    Path("fox.json").write_text(json.dumps(story), encoding="utf-8")
    assert verdicts("fox.json")[0] == 1


def test_a_request_and_its_answer_are_verified_and_a_folder_without_answers_is_an_error() -> None:
    request = {"model": "toy", "prompt": "Once", "max_tokens": 5, "seed": 1}
    Path("request.json").write_text(json.dumps(request), encoding="utf-8")
    ran = onward("completions", "create", *(f"--{name.replace('_', '-')}={value}" for name, value in request.items()))
    Path("answer.json").write_text(ran.stdout, encoding="utf-8")
    assert verdicts("answer.json", "request.json")[0] == 0
    Path("empty").mkdir()
    nothing = onward("verify", "empty")
    assert nothing.exit_code == 1 and "There are no answers in empty." in nothing.stderr
    none = onward("verify")
    assert none.exit_code == 1 and "--log-requests" in none.stderr
    assert onward("verify", "gone.json").exit_code == 2


@pytest.mark.slow
def test_ctrl_c_shows_what_is_known_so_far() -> None:
    files = batch()
    first = json.loads(Path("out.jsonl").read_text(encoding="utf-8").splitlines()[0])
    replies = (answer(200, first["response"]["body"]), lambda server, connection: server.go_on.wait(PATIENCE_SECONDS))
    for name in SHAPES:  # so that no header is needed
        change(lambda line: line["response"].pop("seed", None), name)
    with scripted(*replies) as slow:
        flags = ("--base-url", slow.url, "--concurrency", "1", "--format", "text")
        with Terminal("verify", *files, *flags) as terminal:
            wait_for(lambda: len(slow.requests) == 2)
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.end() == 130
            assert "Traceback" not in terminal.screen and "were not computed." in terminal.screen
        slow.go_on.set()


def test_a_file_of_verdicts_is_continued() -> None:
    files = batch()
    change(lambda line: line["response"]["body"].update(model="none"), "drawn")
    change(lambda line: line["response"]["body"]["choices"][0].update(text="no"), "stop")
    keeping = (*files, "-o", "verdicts.jsonl")
    assert verdicts(*keeping)[0] == 1
    written = Path("verdicts.jsonl").read_text(encoding="utf-8")
    assert len(written.splitlines()) == len(SHAPES) - 1, "what may be known another time is not kept"
    Path("verdicts.jsonl").write_text(
        "".join(line + "\n" for line in written.splitlines()[2:]) + written[:20], encoding="utf-8"
    )
    code, found = verdicts(*keeping)
    assert code == 1 and len(found) == len(SHAPES)
    assert sorted(Path("verdicts.jsonl").read_text(encoding="utf-8").splitlines()) == sorted(written.splitlines())
    assert found["stop"]["difference"]["saved"] == "no" and found["drawn"]["verdict"] == "unknown"
    again = onward("verify", *keeping, "--model", "toy", "--format", "text")
    assert again.exit_code == 1, "another model is another question"
    assert f"{len(SHAPES) - 1} of {len(SHAPES)} the same, 1 different, 0 unknown." in again.stdout
    Path("answer.json").write_text('{"id":"cmpl-1","object":"text_completion","choices":[]}', encoding="utf-8")
    for theirs in ("out.jsonl", "answer.json"):
        content = Path(theirs).read_bytes()
        wrong = onward("verify", *files, "-o", theirs)
        assert wrong.exit_code == 1 and f"{theirs} line 1 is not a verdict" in wrong.stderr
        assert Path(theirs).read_bytes() == content
