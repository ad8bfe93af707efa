"""Proxies, certificates and package indexes of the environment: one sentence each, and never a password."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from onward.network import proxy_of
from tests.cli.conftest import onward
from tests.cli.scripted import error, scripted
from tests.cli.terminal import COMMAND

INDEX = "http://127.0.0.1:1/simple"
"""Nobody listens there."""
PROXY = "http://127.0.0.1:2"
CORPORATE = "http://index.corp.invalid/simple"


@pytest.fixture(autouse=True)
def clean_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path / "cache"))


def sentence(*arguments: str) -> tuple[int, str]:
    """Run a command that fails; return its exit code and its last line, the whole message."""
    result = onward(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result.exit_code, result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("url", "excluded", "is_proxied"),
    [  # curl's reading of NO_PROXY, https://curl.se/docs/manpage.html, and networks, which curl has had since 7.86
        (INDEX, "", True),
        (INDEX, "*", False),
        (INDEX, "127.0.0.1", False),
        (INDEX, "localhost,127.0.0.1 ,x", False),
        (INDEX, "127.0.0.1:1", False),
        (INDEX, "127.0.0.1:8080", True),
        (INDEX, "127.0.0.0/8", False),
        (INDEX, "10.0.0.0/8,192.168.0.0/16", True),
        (INDEX, "10.0.0.0/8 127.0.0.0/8", False),
        (INDEX, "127.0.0.1/99,[,fd07:b51a:cc66:f0::/64,::1,[::1]", True),
        (INDEX, "http://127.0.0.1", False),
        ("http://[::1]:1/simple", "::1", False),
        ("http://[::1]:1/simple", "[::1]", False),
        ("http://[::1]:1/simple", "[::1]:1", False),
        ("http://[::1]:1/simple", "[::1]:2", True),
        ("http://[::1]:1/simple", "::/64", False),
        ("http://[::1]:1/simple", "0:0:0:0:0:0:0:1", False),
        ("http://[::1]:1/simple", "fd07:b51a:cc66:f0::/64", True),
        (CORPORATE, "corp.invalid", False),
        (CORPORATE, ".corp.invalid", False),
        (CORPORATE, "*.corp.invalid", False),
        (CORPORATE, "INDEX.corp.invalid:80", False),
        (CORPORATE, "orp.invalid", True),
        (CORPORATE, "127.0.0.0/8,other.invalid", True),
    ],
)
def test_no_proxy_names_hosts_addresses_and_networks(
    url: str, excluded: str, is_proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", excluded)
    code, words = sentence("pull", "smollm2")
    assert code == 3
    assert ("through the proxy of HTTP_PROXY" in words) == is_proxied, words


UNUSABLE = [
    ("127.0.0.1:port", "is not a URL such as http://HOST:PORT"),
    ("http://[", "is not a URL such as"),
    ("://x", "is not a URL such as"),
    ("two words", "is not a URL such as"),
    ("http://", "is not a URL such as"),
    ("ftp://127.0.0.1:2", "is not a URL such as"),
    ("socks4://127.0.0.1:2", "is not a URL such as"),
    ("http://user:s3cret@[", "is not a URL such as"),
    ("http://127.0.0.1:2\x7f", "is not a URL such as"),
    (os.fsdecode("http://pröxy:1".encode()), "is not a URL such as"),
    ("socks5://user:s3cret@127.0.0.1:2", "speaks SOCKS, for which a package is missing"),
    ("socks5h://127.0.0.1:2", "pip install"),
]


@pytest.mark.parametrize(("proxy", "words"), UNUSABLE)
@pytest.mark.parametrize("variable", ["all_proxy", "HTTP_PROXY"])
def test_a_proxy_that_cannot_be_used_is_reported_in_one_sentence_that_names_the_variable(
    variable: str, proxy: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PIP_INDEX_URL", INDEX)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(variable, proxy)
    said = [
        sentence("pull", "smollm2"),
        sentence("pull", "org/name"),
        sentence("completions", "create", "Once", "-m", "m", "--base-url", "http://127.0.0.1:1/v1"),
    ]
    for code, line in said:
        assert code == 1
        assert line.startswith(f"onward: The proxy in {variable} ") and words in line
        assert "s3cret" not in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("ALL_PROXY", "http://user:s3cret@[", "onward: The proxy in ALL_PROXY is not a URL such as"),
        ("SSL_CERT_FILE", "/nonexistent/s.pem", "onward: SSL_CERT_FILE is set to '/nonexistent/s.pem', which"),
    ],
)
@pytest.mark.parametrize("model", ["smollm2", "org/name"])
def test_a_server_that_would_download_reports_the_same_problem(
    model: str, variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://127.0.0.1:1/simple")
    monkeypatch.setenv("HF_ENDPOINT", "https://127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    done = subprocess.run([*COMMAND, "serve", model, "--port", "0"], capture_output=True, check=False, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(words), done.stderr
    assert "s3cret" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("port", ["+80", "-1", "65536", "x"])
def test_a_port_that_is_none_is_reported_by_whoever_connects(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert proxy_of(f"http://127.0.0.1:{port}") is None


def test_an_endpoint_of_the_hub_that_is_no_url_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:+80")
    code, line = sentence("pull", "org/name")
    assert code == 1 and line.startswith("onward: HF_ENDPOINT must be an http:// or https:// URL")


def test_a_proxy_that_is_not_needed_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", INDEX)
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:2")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert "127.0.0.1:1/simple/ cannot be reached ([Errno 111]" in sentence("pull", "smollm2")[1]


@pytest.mark.parametrize(
    ("variable", "place", "words"),
    [
        ("SSL_CERT_FILE", "missing.pem", "No such file or directory"),
        ("SSL_CERT_FILE", ".", "Is a directory"),
        ("SSL_CERT_FILE", "empty.pem", "it contains no certificates"),
        ("SSL_CERT_DIR", "missing", "No such file or directory"),
    ],
)
def test_certificates_that_cannot_be_read_are_reported_in_one_sentence(
    variable: str, place: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty.pem").write_text("", encoding="utf-8")
    monkeypatch.setenv(variable, str(tmp_path / place))
    monkeypatch.setenv("PIP_INDEX_URL", "https://127.0.0.1:1/simple")
    monkeypatch.setenv("HF_ENDPOINT", "https://127.0.0.1:1")
    said = [
        sentence("pull", "smollm2"),
        sentence("pull", "org/name"),
        sentence("completions", "create", "Once", "-m", "m", "--base-url", "https://127.0.0.1:1/v1"),
    ]
    for code, line in said:
        assert code == 1
        assert line.startswith(f"onward: {variable} is set to ") and words in line, line
    monkeypatch.setenv("PIP_INDEX_URL", INDEX)  # needs none
    assert sentence("pull", "smollm2")[0] == 3


@pytest.mark.parametrize(
    ("variable", "value", "code", "words"),
    [
        ("PIP_INDEX_URL", "http://alice:s3cret@127.0.0.1:1/simple", 3, "index http://127.0.0.1:1/simple/ cannot be"),
        ("PIP_INDEX_URL", "https://s3cret@127.0.0.1:1/simple", 3, "index https://127.0.0.1:1/simple/ cannot be"),
        ("PIP_INDEX_URL", "http://127.0.0.1:1/simple?token=s3cret", 3, "index http://127.0.0.1:1/simple cannot be"),
        ("UV_DEFAULT_INDEX", "mirror=http://127.0.0.1:1/simple", 3, "index http://127.0.0.1:1/simple/ cannot be"),
        ("UV_DEFAULT_INDEX", "my.mirror_2=http://a:s3cret@127.0.0.1:1/s", 3, "index http://127.0.0.1:1/s/ cannot be"),
        ("UV_INDEX_URL", "http://127.0.0.1:1/simple", 3, "index http://127.0.0.1:1/simple/ cannot be"),
        ("PIP_INDEX_URL", "alice:s3cret@127.0.0.1:1/simple", 1, "index of PIP_INDEX_URL must be an http://"),
        ("PIP_INDEX_URL", "file:///srv/s3cret", 1, "index of PIP_INDEX_URL must be an http://"),
        ("UV_INDEX_URL", "http://a:s3cret@[/simple", 1, "index of UV_INDEX_URL must be an http://"),
        ("PIP_INDEX_URL", "http://a:s3cret@127.0.0.1:port/", 1, "index of PIP_INDEX_URL must be an http://"),
        ("PIP_INDEX_URL", "http://", 1, "index of PIP_INDEX_URL must be an http://"),
        ("PIP_INDEX_URL", "http://127.0.0.1/s3cret\x1b", 1, "index of PIP_INDEX_URL must be an http://"),
        ("PIP_INDEX_URL", "http://127.0.0.1/s3cret\udcff", 1, "index of PIP_INDEX_URL must be an http://"),
    ],
)
def test_a_package_index_is_named_without_its_password(
    variable: str, value: str, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    found, line = sentence("pull", "smollm2")
    assert (found, words in line) == (code, True), line
    assert "s3cret" not in line


@pytest.mark.parametrize("address", ["http://alice:s3cret@{}/v1", "http://alice:s3cret@[/v1", "a:s3cret@host:1"])
def test_a_password_in_a_base_url_is_not_shown(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(error(404, "Unknown request URL.", "unknown_url")) as server:
        monkeypatch.setenv("ONWARD_BASE_URL", address.format(server.url.split("/")[2]))
        monkeypatch.setattr("onward.cli.source.transport.INITIAL_DELAY_SECONDS", 0.01)
        for arguments in (("models", "list", "--debug"), ("completions", "create", "x", "-m", "m")):
            result = onward(*arguments)
            assert result.exit_code in (2, 3, 4)
            assert "s3cret" not in result.output and "s3cret" not in result.stderr


def test_a_password_in_a_base_url_is_in_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_BASE_URL", "http://alice:s3cret@127.0.0.1:1/v1")
    assert "s3cret" not in onward("doctor", "--format", "text").output
    assert "s3cret" not in onward("config", "show").output


def test_a_password_for_an_upstream_is_not_shown() -> None:
    code, line = sentence("serve", "--model", "llama+http://alice:s3cret@h:1")
    assert code == 1 and "needs a name" in line and "s3cret" not in line
