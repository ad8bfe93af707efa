"""Whatever the variables, folders and encodings of a machine: a command succeeds, or says in one sentence why not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onward.cli.output.errors import DOCUMENTED
from tests.cli.conftest import onward
from tests.cli.terminal import COMMAND
from tests.examples import examples, slow_but
from tests.processes import server_process
from tests.waiting import PATIENCE_SECONDS

CREATE = ("completions", "create", "Once", "--model", "toy", "--max-tokens", "2", "--temperature", "0")
POSIX = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""A locale without UTF-8, as Python sees it."""


@pytest.fixture
def locked_out() -> list[str]:
    """What begins a command that may not enter folders without permissions: root may enter all."""
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
    "arguments", [CREATE, ("models", "list"), ("serve", "--port", "0")], ids=lambda words: words[0]
)
def test_a_folder_that_was_removed_is_a_sentence(arguments: tuple[str, ...], tmp_path: Path) -> None:
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
        ("closed", {}, 1, "onward: The current folder may not be entered by this user: change to another one."),
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


@pytest.mark.parametrize(
    "env",
    [
        POSIX,
        *(pytest.param({"PYTHONIOENCODING": name}, marks=pytest.mark.slow) for name in ("ascii", "latin-1", "utf-8")),
    ],
)
def test_a_text_arrives_and_is_written_in_any_encoding(env: dict[str, str]) -> None:
    text = "Grüße, 世界 😀"
    done = run(*CREATE[:2], text, *CREATE[3:], "--echo", env=env)
    assert said(done)[0] == 0
    assert json.loads(done.stdout.decode(env.get("PYTHONIOENCODING", "utf-8")))["choices"][0]["text"].startswith(text)


@pytest.mark.slow
def test_a_text_as_text_is_escaped_where_the_encoding_lacks_characters() -> None:
    done = run("completions", "create", "Grüße", *CREATE[3:], "--echo", "--format", "text", env=POSIX)
    assert said(done)[0] == 0 and done.stdout.startswith(rb"Gr\u00fc\u00dfe")


def test_a_file_name_that_the_encoding_lacks_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "onward.toml").write_text('model = "modèle.gguf"', encoding="utf-8")
    code, line = said(run("completions", "create", "x", cwd=tmp_path, env=POSIX))
    assert code in (1, 4) and line.startswith("onward: ")


@pytest.mark.parametrize(
    "name", slow_but([b"bad\xff"], [b"bad\xff", "modèle".encode(), b"q\"uote 'n", b"new\nline\x1b[1m", b"-dash"])
)
@pytest.mark.parametrize("env", [pytest.param({}, marks=pytest.mark.slow), POSIX], ids=["UTF-8", "POSIX"])
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


def _choice(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


def _each(strategy: st.SearchStrategy[str], names: str) -> dict[str, st.SearchStrategy[str]]:
    return dict.fromkeys(names.split(), strategy)


FOLDERS = _choice(
    "", "relative", "~", "~/x", "~nobody/x", "$HOME", "/proc/nothing", "/dev/null", "x" * 300, "bad\udcff", "ü",
    "a b", ".",
)  # fmt: skip
WORDS = st.one_of(
    _choice(
        "", " ", "0", "-1", "1e9", "auto", "true", "nan", "[", "{", '{"a":', "a=b", "=", ",", "x" * 5000, "bad\udcff"
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
)
URLS = _choice(
    "", " ", "http://", "http://[", "://", "127.0.0.1:1", "socks5://127.0.0.1:1", "http://u:p@127.0.0.1:1", "bad\udcff",
    "http://127.0.0.1:99999", "http://\x07",
)  # fmt: skip
VARIABLES: dict[str, st.SearchStrategy[str]] = {
    **_each(FOLDERS, "HOME XDG_CACHE_HOME XDG_CONFIG_HOME HF_HOME TMPDIR ONWARD_CACHE_DIR SSL_CERT_FILE SSL_CERT_DIR"),
    **_each(FOLDERS, "ONWARD_CONFIG ONWARD_API_KEY_FILE PIP_CONFIG_FILE"),
    **_each(URLS, "HTTP_PROXY https_proxy ALL_PROXY PIP_INDEX_URL UV_DEFAULT_INDEX"),
    **_each(WORDS | _choice("::1,[::1]", "fd07::/64", "[", "*", "1/2/3"), "NO_PROXY no_proxy"),
    **_each(
        WORDS, "ONWARD_PORT ONWARD_KV_MEMORY ONWARD_ALIAS ONWARD_LORA ONWARD_CONTENT_FILTER ONWARD_API_KEY ONWARD_HOST"
    ),
    **_each(WORDS, "ONWARD_UNKNOWN ONWARD_TRUSTED_PROXY OPENAI_CUSTOM_HEADERS OPENAI_API_KEY ONWARD_MAX_BODY"),
    **_each(WORDS, "TERM COLUMNS LINES NO_COLOR FORCE_COLOR TZ LANG"),
    "ONWARD_THREADS": _choice("", "x", "-1"),
}
"""What a variable may contain; the engine's own sizes are left alone."""
COMMANDS = (
    ("config", "show"),
    ("models", "list"),
    ("models", "show", "toy"),
    ("models", "search", "code"),
    ("pull", "smollm2"),
    ("tokenize", "-m", "toy", "Once"),
    ("doctor",),
    ("completions", "create", "Once", "--dry-run", "--max-tokens", "2"),
    ("models", "cache", "list"),
)
ENVIRONMENTS = st.lists(st.sampled_from(sorted(VARIABLES)), max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: VARIABLES[name] for name in names})
)


def check(code: int, output: str, errors: str) -> None:
    """The oracle. Colours and the zero bytes of UTF-16 are what the environment asked for."""
    output, errors = (re.sub(r"\x1b\[[0-9;]*[mK]|\0|\ufeff|\ufffd", "", each) for each in (output, errors))
    assert code in dict(DOCUMENTED), code
    assert "Traceback" not in errors
    if code and '"findings"' not in output:
        last = [line for line in errors.splitlines() if line.strip()]
        assert any(line.startswith(("onward: ", "Error: ")) for line in last), errors or output


@given(command=st.sampled_from(COMMANDS), environment=ENVIRONMENTS)
@settings(max_examples=examples(120), suppress_health_check=list(HealthCheck))
def test_any_environment_is_a_result_or_a_sentence(
    command: tuple[str, ...], environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
        patch.chdir(tmp_path_factory.getbasetemp())
        for name, value in environment.items():
            patch.setenv(name, value)
        result = onward(*command)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    check(result.exit_code, result.stdout, result.stderr)


PROCESS_VARIABLES = {
    **VARIABLES,
    "PYTHONIOENCODING": _choice("ascii", "latin-1", "utf-16", "utf-8:strict", "cp1252"),
    "PYTHONUTF8": _choice("0", "1"),
    "LC_ALL": _choice("C", "POSIX", "de_DE.ISO-8859-1", "xx"),
    **_each(_choice("0", "1", "64", "x"), "OMP_NUM_THREADS OPENBLAS_NUM_THREADS"),
}
PROCESS_ENVIRONMENTS = st.lists(st.sampled_from(sorted(PROCESS_VARIABLES)), max_size=5, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: PROCESS_VARIABLES[name] for name in names})
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="starts a shell")
@given(
    command=st.sampled_from([CREATE, *COMMANDS]),
    environment=PROCESS_ENVIRONMENTS,
    limit=st.sampled_from(["", "ulimit -n 20; ", "umask 777; "]),
    closed=st.sampled_from(["", "<&-", "</dev/null"]),
)
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
def test_a_process_in_any_environment_ends_with_a_result_or_a_sentence(
    command: tuple[str, ...],
    environment: dict[str, str],
    limit: str,
    closed: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    env = {**os.environ, "PIP_INDEX_URL": "http://127.0.0.1:1/simple", **environment}
    shell = f'{limit}exec "$@" {closed}'
    folder = tmp_path_factory.mktemp("cwd")
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *COMMAND, *command], cwd=folder, env=env, capture_output=True, check=False
    )
    check(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


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
            assert "sqlite" not in maps.read_text()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and ".cache" not in path.parts] == []
