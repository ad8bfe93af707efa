"""Random environments (variables, encodings, limits): variables that a command does not use change no byte; one that
makes it fail is named in one line, and has the same effect alone.

Sources: docs/reference/settings.md and cli.md for which command uses which variables, and for exit codes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.conftest import onward
from tests.cli.terminal import COMMAND
from tests.examples import examples

Command = tuple[str, ...]
Environment = dict[str, str]
SECRET = "s3cret"
PLAIN = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_CONFIG_FILE": "/dev/null"}
"""Nobody listens there."""
SURROGATE = "bad\udcff"
"""A byte that is not UTF-8, as Python sees it. Only for processes: a runner's streams cannot take it."""


def _choice(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


def _each(strategy: st.SearchStrategy[str], names: str) -> dict[str, st.SearchStrategy[str]]:
    return dict.fromkeys(names.split(), strategy)


FOLDERS = _choice(
    "", "relative", "~", "~/x", "~nobody/x", "$HOME", "/proc/nothing", "/dev/null", "x" * 300, "ü", "a b", ".",
    SURROGATE,
)  # fmt: skip
WORDS = st.one_of(
    _choice(
        "", " ", "0", "-1", "1e9", "auto", "true", "nan", "[", "{", '{"a":', "a=b", "=", ",", "x" * 5000, SURROGATE
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
)
SECRETS = _choice("", " ", SECRET, f"{SECRET}ü", f"Authorization: {SECRET}", f"{SECRET}\x07", f"{SECRET},{SECRET}")
INDEXES = _choice(
    "http://", "http://[", "://", "127.0.0.1:1", "socks5://127.0.0.1:1", f"http://u:{SECRET}@127.0.0.1:1", "http://\x07",
    "http://127.0.0.1:99999", f"mirror=http://{SECRET}@127.0.0.1:1/a", SURROGATE,
)  # fmt: skip
"""None is empty: the machine's own index would be asked."""
VARIABLES: dict[str, st.SearchStrategy[str]] = {
    **_each(FOLDERS, "HOME XDG_CACHE_HOME XDG_CONFIG_HOME HF_HOME TMPDIR ONWARD_CACHE_DIR SSL_CERT_FILE SSL_CERT_DIR"),
    **_each(FOLDERS, "ONWARD_CONFIG ONWARD_API_KEY_FILE PIP_CONFIG_FILE"),
    **_each(INDEXES | _choice("", " "), "HTTP_PROXY https_proxy ALL_PROXY"),
    **_each(INDEXES, "PIP_INDEX_URL UV_DEFAULT_INDEX"),
    **_each(WORDS | _choice("::1,[::1]", "fd07::/64", "[", "*", "1/2/3"), "NO_PROXY no_proxy"),
    **_each(WORDS, "ONWARD_PORT ONWARD_KV_MEMORY ONWARD_ALIAS ONWARD_LORA ONWARD_CONTENT_FILTER ONWARD_HOST"),
    **_each(WORDS, "ONWARD_UNKNOWN ONWARD_TRUSTED_PROXY ONWARD_MAX_BODY"),
    **_each(SECRETS, "ONWARD_API_KEY OPENAI_API_KEY OPENAI_CUSTOM_HEADERS OPENAI_ORG_ID OPENAI_PROJECT_ID"),
    **_each(WORDS, "TERM COLUMNS LINES NO_COLOR FORCE_COLOR TZ LANG"),
    "ONWARD_THREADS": _choice("", "x", "-1"),
}
"""What a variable may contain; the engine's own sizes are left alone."""
SCREEN = {"TERM", "COLUMNS", "LINES", "NO_COLOR", "TZ", "LANG"}
"""For terminals, which these commands do not have."""
SERVER = {"OPENAI_API_KEY", "OPENAI_CUSTOM_HEADERS", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"}
"""For requests to a server."""
NETWORK = {
    *("HTTP_PROXY", "https_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("PIP_INDEX_URL", "PIP_CONFIG_FILE", "UV_DEFAULT_INDEX"),
}
CACHES = {"XDG_CACHE_HOME", "HF_HOME", "ONWARD_CACHE_DIR"}
OFFLINE = SCREEN | SERVER | NETWORK | {"TMPDIR"}
UNUSED: dict[Command, set[str]] = {
    ("config", "show"): OFFLINE | {"XDG_CACHE_HOME", "HF_HOME"},
    ("models", "list"): OFFLINE,
    ("models", "show", "toy"): OFFLINE | CACHES,
    ("models", "search", "code"): VARIABLES.keys() - {"FORCE_COLOR"},
    ("pull", "smollm2"): SCREEN | SERVER | {"HF_HOME"},
    ("tokenize", "-m", "toy", "Once"): OFFLINE | CACHES,
    ("completions", "create", "Once", "--dry-run", "--max-tokens", "2"): VARIABLES.keys() - {"FORCE_COLOR"},
    ("completions", "create", "x", "-m", "toy", "--temperature", "0", "-r", "--transform", "choices.0.text"): OFFLINE
    | {"HF_HOME"},
}
"""What a command has no use for."""
DOCTOR = ("doctor",)
"""Reports what it finds, so that it names many variables, and exits with 1."""


class Said(NamedTuple):
    code: int
    output: str
    errors: str

    @property
    def problem(self) -> str:
        """The line that says why a command failed."""
        lines = [line for line in self.errors.splitlines() if line.startswith(("onward: ", "Error: "))]
        assert len(lines) == 1, self.errors
        return lines[0]


def readable(text: str) -> str:
    """The output without colours and zero bytes of UTF-16, which the environment requested."""
    return re.sub(r"\x1b\[[0-9;]*[mK]|\0|\ufeff|\ufffd", "", text)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty home, and the working folder. Nothing of the developer's is seen from there."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if (
                name in VARIABLES
                or name.startswith(("ONWARD_", "OPENAI_", "HF_", "PIP_", "UV_"))
                or name.lower().endswith("_proxy")
            ):
                patch.delenv(name)
        found = tmp_path_factory.mktemp("home")
        patch.chdir(found)
        for name, value in {**PLAIN, "HOME": str(found)}.items():
            patch.setenv(name, value)
        yield found


def said(command: Command, environment: Mapping[str, str]) -> Said:
    """Run a command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, os.fsdecode(value.encode("utf-8", "surrogateescape")))  # these bytes, in any locale
        result = onward(*command)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return Said(result.exit_code, readable(result.stdout), readable(result.stderr))


def check(command: Command, found: Said) -> None:
    """What holds in every environment."""
    assert found.code in (0, 1, 2, 3)
    assert "Traceback" not in found.errors
    assert SECRET not in found.output + found.errors
    if found.code and command != DOCTOR:
        assert found.output == ""
        kind = 2 if found.problem.startswith("Error: ") else 3 if "cannot be reached" in found.problem else 1
        assert found.code == kind, found.errors


def environments(names: set[str], most: int, surrogates: bool = False) -> st.SearchStrategy[Environment]:
    def values(chosen: list[str]) -> st.SearchStrategy[Environment]:
        kept = {name: VARIABLES[name].filter(lambda value: surrogates or value != SURROGATE) for name in chosen}
        return st.fixed_dictionaries(kept)

    return st.lists(st.sampled_from(sorted(names)), max_size=most, unique=True).flatmap(values)


@given(data=st.data(), command=st.sampled_from(sorted(UNUSED)))
@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
def test_what_a_command_has_no_use_for_changes_no_byte(data: st.DataObject, command: Command, home: Path) -> None:
    environment = data.draw(environments(UNUSED[command], most=8))
    assert said(command, environment) == said(command, {})


@pytest.mark.slow
@given(command=st.sampled_from([*sorted(UNUSED), DOCTOR]), environment=environments(set(VARIABLES), most=4))
@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
def test_a_failure_is_one_line_that_names_its_causes(command: Command, environment: Environment, home: Path) -> None:
    """With only the variables that it names, the command fails with the same line."""
    found = said(command, environment)
    check(command, found)
    if found.code and command != DOCTOR:
        named = {name: value for name, value in environment.items() if _is_named(name, value, found.problem)}
        alone = said(command, named)
        assert (alone.code, alone.problem) == (found.code, found.problem), named


def _is_named(name: str, value: str, line: str) -> bool:
    return name in line or value.rpartition("@")[2].rpartition("=")[2] in line


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
    command=st.sampled_from([*sorted(UNUSED), DOCTOR]),
    environment=PROCESS_ENVIRONMENTS,
    limit=st.sampled_from(["", "ulimit -n 20; ", "umask 777; "]),
    closed=st.sampled_from(["", "<&-", "</dev/null"]),
)
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
def test_a_process_in_any_environment_ends_with_a_result_or_a_sentence(
    command: Command,
    environment: Environment,
    limit: str,
    closed: str,
    home: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    shell = f'{limit}exec "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *COMMAND, *command],
        cwd=tmp_path_factory.mktemp("cwd"),
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )
    output, errors = (readable(each.decode("utf-8", "replace")) for each in (done.stdout, done.stderr))
    check(command, Said(done.returncode, output, errors))
