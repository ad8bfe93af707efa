"""A hub that answers nonsense: one sentence, and no file that is presented as a model."""

from __future__ import annotations

import http.server
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onward.errors import ModelNameError
from onward.models.hub import HubName, _CheckingFactory, fetch
from tests.checkpoints.hugging_face import write_folder
from tests.cli.terminal import COMMAND
from tests.models.doors import hub_downloads

pytestmark = pytest.mark.slow
COMMIT, DIGEST = "a" * 40, "b" * 64
ANSWERS: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "an error": (500, b"<html>\x1b[31moops</html>", {}),
    "too many requests": (429, b"slow down", {"retry-after": "1"}),
    "a login page": (200, b"<html>log in</html>", {"content-type": "text/html"}),
    "a list": (200, b"[]", {}),
    "null": (200, b"null", {}),
    "nested deeply": (200, b"[" * 100_000, {}),
    "redirects without end": (302, b"", {"location": "/api/models/org/name/revision/main"}),
    "a redirect to nowhere": (302, b"", {"location": "http://127.0.0.1:1/x"}),
    "unauthorized": (401, b"several\nlines\n" * 50, {"www-authenticate": "Bearer"}),
    "a length that is no number": (200, b"", {"content-length": "abc"}),
}
"""To whatever is asked: status, body, headers."""
NAMES: dict[str, list[Any]] = {
    "that climb": ["../../../../evil.gguf"],
    "that are absolute": ["/tmp/evil.gguf"],
    "that no file has": ["a\0b.gguf"],
    "that are no texts": [5, None, {"x": 7}],
    "that are too long": ["x" * 5_000 + ".gguf"],
}
"""Names of files in a list that is otherwise right."""
LEADING_OUT: dict[str, dict[str, str]] = {
    "a commit": {"sha": "../../evil"},
    "a commit of a file": {"x-repo-commit": "../../evil"},
    "a commit of a file that is not there": {"x-repo-commit": "../../evil", "status": "404"},
    "a digest": {"etag": '"../../evil"'},
    "a weak digest": {"etag": 'W/"../../evil"'},
    "a digest of a linked file": {"x-linked-etag": "../../evil"},
    "a path of its own": {"etag": '"/tmp/evil"'},
    "the folder itself": {"etag": '".."'},
    "a digest in a list": {"oid": "../../evil"},
}
"""By which the hub's library names files and folders of its cache."""


class Hub(http.server.ThreadingHTTPServer):
    answer: tuple[int, bytes, dict[str, str]] | None = None
    names: Sequence[Any] = ()
    stated: Mapping[str, str] = {}
    is_cut = False


class AnsweringHandler(http.server.BaseHTTPRequestHandler):
    """Answers with JSON, or what `headers` say it is, without the body to HEAD."""

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), "content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Handler(AnsweringHandler):
    server: Hub

    def do_GET(self) -> None:
        if self.server.answer is not None:
            return self.send(*self.server.answer)
        stated = {name: value for name, value in self.server.stated.items() if name not in ("sha", "oid", "status")}
        if "/tree/" in self.path:
            lfs = {"oid": self.server.stated.get("oid", DIGEST), "size": 9, "pointerSize": 9}
            common = {"type": "file", "size": 9, "oid": "c" * 40, "lfs": lfs}
            listed = [{**common, "path": name} for name in self.server.names]
            return self.send(200, json.dumps(listed).encode(), {})
        if "/api/" in self.path:
            siblings = [{"rfilename": name} for name in self.server.names]
            commit = self.server.stated.get("sha", COMMIT)
            model = {"id": "org/name", "sha": commit, "siblings": siblings, "private": False, "gated": False}
            return self.send(200, json.dumps(model).encode(), {})
        length = {"content-length": "99999"} if self.server.is_cut else {}
        headers = {"x-repo-commit": COMMIT, "etag": f'"{DIGEST}"', "x-linked-size": "9", **length, **stated}
        return self.send(int(self.server.stated.get("status", 200)), b"GGUF12345", headers)

    do_HEAD = do_GET


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def pull(hub: Hub, home: Path) -> tuple[int, str]:
    """Exit code and last line of `onward pull`, which leaves nothing outside of the hub's cache."""
    where = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(home / "cache/hf"), "HOME": str(home)}
    done = subprocess.run(
        [*COMMAND, "pull", "org/name"], env=os.environ | where, capture_output=True, check=False, timeout=120
    )
    said = done.stderr.decode()
    assert "Traceback" not in said and "allow_patterns" not in said, said
    assert not [path for path in home.parent.rglob("evil*") if path.is_file()]
    return done.returncode, said.splitlines()[-1]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_strange_answer_is_reported_in_one_sentence(name: str, hub: Hub, tmp_path: Path) -> None:
    hub.answer = ANSWERS[name]
    code, line = pull(hub, tmp_path / "deep/home")
    status = ANSWERS[name][0]
    assert code in (3, 4) and line.startswith("onward: org/name "), line
    assert len(line) < 500 and "\x1b" not in line
    if status in (429, 500):
        assert line.endswith(f"and the hub answers {status}: try again later."), line


@pytest.mark.parametrize("name", NAMES)
def test_strange_names_of_files_are_reported_in_one_sentence(name: str, hub: Hub, tmp_path: Path) -> None:
    hub.names = NAMES[name]
    code, line = pull(hub, tmp_path / "deep/home")
    assert code == 4 and line.startswith("onward: org/name could not be downloaded"), line
    if name in ("that climb", "that are absolute"):  # not only the newest versions of the hub's library refuse them
        assert f"it names a file {NAMES[name][0]!r}" in line, line


@pytest.mark.parametrize("name", LEADING_OUT)
def test_names_that_lead_out_of_the_cache_are_refused(name: str, hub: Hub, tmp_path: Path) -> None:
    hub.names, hub.stated = ["m-Q8_0.gguf"], LEADING_OUT[name]
    code, line = pull(hub, tmp_path / "deep/home")
    [value] = [each for key, each in LEADING_OUT[name].items() if key != "status"]
    assert code == 4 and line.startswith("onward: org/name could not be downloaded: what the hub answers"), line
    assert f"it names a file {value!r}" in line


def test_a_truncated_file_is_not_a_model(hub: Hub, tmp_path: Path) -> None:
    hub.names, hub.is_cut = ["m-Q8_0.gguf"], True
    code, line = pull(hub, tmp_path / "deep/home")
    assert code == 3 and line.startswith("onward: org/name could not be downloaded"), line


def test_a_file_that_is_not_a_model_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.names = ["m-Q8_0.gguf"]
    code, line = pull(hub, tmp_path / "deep/home")
    assert code == 1 and "is cut off after 9 bytes: download it again" in line, line


def test_concurrent_downloads_leave_the_library_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one to end does not reset the log level for the other; the last one resets it."""
    write_folder(tmp_path, "llama")
    pytest.importorskip("huggingface_hub.utils.logging")  # sets the level when it is imported
    logger, before = logging.getLogger("huggingface_hub"), logging.getLogger("huggingface_hub").level
    began = {name: threading.Event() for name in "ab"}
    may_end = {name: threading.Event() for name in "ab"}

    def download(repo_id: str, **_: Any) -> str:
        name = repo_id[-1]
        began[name].set()
        assert may_end[name].wait(60)
        return str(tmp_path)

    hub_downloads(monkeypatch, download)
    threads = {
        name: threading.Thread(target=partial(fetch, HubName(f"org/{name}", None), allow_download=True))
        for name in "ab"
    }
    for name, thread in threads.items():
        thread.start()
        assert began[name].wait(60)
    may_end["a"].set()
    threads["a"].join()
    assert logger.level == logging.ERROR
    may_end["b"].set()
    threads["b"].join()
    assert logger.level == before


def test_the_first_download_of_a_process_is_quiet_too() -> None:
    """The library sets its log level when it imports what logs, which its version 2 does in the first download."""
    pytest.importorskip("huggingface_hub")
    program = (
        "import logging; from onward.models import hub\n"
        "with hub._library_silenced():\n"
        "    assert hub._library().snapshot_download\n"
        "    print(logging.getLogger('huggingface_hub').level)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(ran.stdout) == logging.ERROR


@pytest.mark.parametrize("was_used", [False, True], ids=["first", "used before"])
def test_a_client_that_a_program_makes_is_checked_and_remains_its_own(was_used: bool) -> None:
    """Also if the program sets its factory after the first download, and that factory calls the previous one."""
    http = pytest.importorskip("huggingface_hub.utils._http")
    if not hasattr(http, "set_client_factory"):
        pytest.skip("huggingface_hub 0.x has another name for it")
    before = http._GLOBAL_CLIENT_FACTORY
    made: list[Any] = []

    def factory() -> Any:
        made.append((_CheckingFactory(before) if was_used else before)())
        return made[-1]

    try:
        for number in range(2):
            http.set_client_factory(factory)
            with pytest.raises(ModelNameError):
                fetch(HubName("org/nothing", None), allow_download=False)
            client = http.get_session()
            assert client is made[number]
            assert [hook.__name__ for hook in client.event_hooks["response"]].count("_check_names") == 1
    finally:
        http.set_client_factory(before)
