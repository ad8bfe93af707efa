"""In every environment (variables, folders, encodings) a command succeeds, or says in one sentence why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.cli.terminal import COMMAND
from tests.examples import slow_but
from tests.processes import server_process
from tests.waiting import PATIENCE_SECONDS

CREATE = ("completions", "create", "Once", "--model", "toy", "--max-tokens", "2", "--temperature", "0")
POSIX = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""A locale without UTF-8, as Python sees it."""


@pytest.fixture
def locked_out() -> list[str]:
    """The prefix of a command that must not enter folders without permissions, which root may."""
    if os.geteuid() != 0:
        return []
    begin = ["setpriv", "--reuid", "65534", "--clear-groups"]
    try:
        subprocess.run([*begin, *COMMAND, "--version"], cwd="/", env={"HOME": "/"}, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("another user cannot run this interpreter")
    return begin


def run(
    *arguments: str | bytes, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    environ = {**os.environ, **(env or {})}
    command = [*map(os.fsencode, COMMAND), *arguments]
    return subprocess.run(command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def said(done: subprocess.CompletedProcess[bytes]) -> tuple[int, str]:
    """The exit code, and the last line on standard error."""
    text = done.stderr.decode("utf-8", "replace")
    assert "Traceback" not in text, text
    return done.returncode, (text.splitlines() or [""])[-1]


@pytest.mark.parametrize(
    "arguments", slow_but([CREATE], [CREATE, ("models", "list"), ("serve", "--port", "0")]), ids=lambda words: words[0]
)
def test_a_folder_that_was_removed_is_reported_in_one_message(arguments: tuple[str, ...], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = 'cd "$0" && rmdir "$0" && exec "$@"'
    done = subprocess.run(["sh", "-c", shell, gone, *COMMAND, *arguments], capture_output=True, check=False)
    assert said(done) == (1, "onward: The current folder no longer exists: change to another one.")


@pytest.mark.parametrize(
    ("cwd", "variables", "code", "words"),
    [
        ("open", {"XDG_CONFIG_HOME": "{}/closed"}, 0, "there may be settings in {}/closed/onward/onward.toml, which"),
        pytest.param(
            "open",
            {"HOME": "{}/closed", "XDG_CONFIG_HOME": ""},
            0,
            "there may be settings in {}/closed/.config/onward",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "open",
            {"ONWARD_CONFIG": "{}/closed/x.toml"},
            1,
            "The settings file {}/closed/x.toml cannot be read: Permission",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "closed",
            {},
            1,
            "onward: This user may not enter the current folder: change to another one.",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_folder_that_may_not_be_entered_has_no_settings(
    cwd: str, variables: dict[str, str], code: int, words: str, tmp_path: Path, locked_out: list[str]
) -> None:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)  # whatever the umask
    env = {**os.environ, "HOME": "/", **{name: value.format(tmp_path) for name, value in variables.items()}}
    shell = 'cd "$0" && chmod 600 ../closed && exec "$@"'
    command = ["sh", "-c", shell, str(tmp_path / cwd), *locked_out, *COMMAND, "config", "show"]
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    (tmp_path / "closed").chmod(0o755)
    found, line = said(done)
    assert (found, words.format(tmp_path) in line) == (code, True), line


@pytest.mark.slow
@pytest.mark.parametrize("env", [POSIX, *({"PYTHONIOENCODING": name} for name in ("ascii", "latin-1", "utf-8"))])
def test_a_text_arrives_and_is_written_in_any_encoding(env: dict[str, str]) -> None:
    text = "Grüße, 世界 😀"
    done = run(*CREATE[:2], text, *CREATE[3:], "--echo", env=env)
    assert said(done)[0] == 0
    assert json.loads(done.stdout.decode(env.get("PYTHONIOENCODING", "utf-8")))["choices"][0]["text"].startswith(text)


@pytest.mark.slow
def test_format_text_escapes_characters_that_the_encoding_lacks() -> None:
    done = run("completions", "create", "Grüße", *CREATE[3:], "--echo", "--format", "text", env=POSIX)
    assert said(done)[0] == 0 and done.stdout.startswith(rb"Gr\u00fc\u00dfe")


@pytest.mark.slow
def test_a_file_name_that_the_encoding_lacks_is_reported_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "onward.toml").write_text('model = "modèle.gguf"', encoding="utf-8")
    code, line = said(run("completions", "create", "x", cwd=tmp_path, env=POSIX))
    assert code in (1, 4) and line.startswith("onward: ")


@pytest.mark.slow
@pytest.mark.parametrize("name", [b"bad\xff", "modèle".encode(), b"q\"uote 'n", b"new\nline\x1b[1m", b"-dash"])
@pytest.mark.parametrize("env", [{}, POSIX], ids=["UTF-8", "POSIX"])
def test_a_path_is_printed_whatever_its_bytes(name: bytes, env: dict[str, str], tmp_path: Path) -> None:
    done = run("models", "show", b"./" + name + b".gguf", cwd=tmp_path, env=env)
    assert said(done)[0] in (1, 4) and done.stderr.startswith(b"onward: ")
    code, line = said(run("config", "show", "--config", b"./" + name + b".toml", cwd=tmp_path, env=env))
    assert code == 1 and "cannot be read: No such file" in line


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits address space")
@pytest.mark.parametrize(
    "kilobytes", [90_000, 200_000, 300_000, 400_000, 500_000, 600_000, 800_000, 1_100_000, 1_500_000]
)
def test_a_process_without_enough_memory_says_so(kilobytes: int) -> None:
    """With less than numpy needs, OpenBLAS says so itself."""
    command = ["sh", "-c", f'ulimit -v {kilobytes} && exec "$@"', "sh", *COMMAND, "completions", "create", "Once"]
    code, line = said(subprocess.run(command, capture_output=True, check=False))
    if code or kilobytes < 500_000:
        assert code == 1 and line.startswith(("onward: ", "OpenBLAS error: ")) and "memory" in line.lower(), line


@pytest.mark.slow
def test_a_server_without_a_database_keeps_nothing_and_imports_nothing_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    with server_process() as server:
        answer = httpx2.post(
            f"{server.url}/v1/completions", json={"model": "toy", "prompt": "x"}, timeout=PATIENCE_SECONDS
        )
        assert answer.status_code == 200
        assert not any(name.startswith("x-ratelimit") for name in answer.headers)
        assert httpx2.get(f"{server.url}/v1/batches", timeout=PATIENCE_SECONDS).status_code == 404
        maps = Path(f"/proc/{server.popen.pid}/maps")
        if maps.exists():
            assert "sqlite" not in maps.read_text(encoding="utf-8")
    assert [path for path in tmp_path.rglob("*") if path.is_file() and ".cache" not in path.parts] == []
