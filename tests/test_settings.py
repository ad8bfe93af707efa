"""Settings: one declaration, four sources, clear error messages."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from onward import values
from onward.cli.settings_command import SettingsCommand
from onward.errors import SetupError
from onward.folders import cache_folder
from onward.settings import GROUPS, Resolved, Settings, options, resolve
from tests.examples import UNICODE, examples


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def resolve_settings(flags: dict[str, Any] | None = None, home: Path | None = None, **environ: str) -> Resolved:
    return resolve(flags, environ={"XDG_CONFIG_HOME": str(home or "/nowhere"), **environ})


def test_flags_override_the_environment_the_file_and_the_defaults() -> None:
    Path("onward.toml").write_text('port = 1\nthreads = 1\nmax_rows = 1\nmodel = ["c"]', encoding="utf-8")
    resolved = resolve_settings({"port": "3"}, ONWARD_PORT="2", ONWARD_THREADS="2", ONWARD_MODEL="a, b")
    settings = resolved.settings
    assert (settings.port, settings.threads, settings.max_rows, settings.drain) == (3, 2, 1, 30.0)
    assert settings.model == ("a", "b")
    assert {name: resolved.origins[name] for name in ("port", "threads", "max_rows", "drain")} == {
        "port": "--port",
        "threads": "ONWARD_THREADS",
        "max_rows": "onward.toml",
        "drain": "default",
    }


def test_every_setting_has_an_origin() -> None:
    assert resolve_settings().origins == {option.name: "default" for option in options()}


def test_defaults_are_those_of_the_declaration() -> None:
    settings = resolve_settings().settings
    assert settings == Settings()
    assert (settings.model, settings.host, settings.port) == (("storyteller",), "127.0.0.1", 8000)
    assert (settings.max_body, settings.keep_alive, settings.kv_memory) == (16_000_000, 15.0, None)


@pytest.mark.parametrize("option", options(), ids=lambda option: option.name)
def test_every_setting_is_documented_and_its_spellings_follow_its_name(option: Any) -> None:
    assert option.flag == "--" + option.name.replace("_", "-")
    assert option.environment == "ONWARD_" + option.name.upper()
    assert option.group in GROUPS
    assert option.help.endswith(".")
    assert option.is_boolean or option.metavar


@pytest.mark.parametrize("option", options(), ids=lambda option: option.name)
def test_every_setting_can_be_set_by_each_source(option: Any, tmp_path: Path) -> None:
    raw = EXAMPLES[option.name]
    flag = [raw] if option.is_repeatable else raw
    path = tmp_path / "my.toml"
    path.write_text(f"{option.name} = '{raw}'", encoding="utf-8")
    by_flag = getattr(resolve_settings({option.name: flag}).settings, option.name)
    by_environment = getattr(resolve(environ={option.environment: raw}).settings, option.name)
    by_file = getattr(resolve(environ={}, config=path).settings, option.name)
    assert by_flag == by_environment == by_file != option.default


EXAMPLES = {
    "database": "postgresql://onward:secret@db/team",
    "data_dir": "/var/lib/onward",
    "keep_ledger": "90d",
    "keep_requests": "7d",
    "log_requests": "/tmp/log",
    "price": "tiny=0.5/1.25/0.000001",
    "model": "tiny",
    "alias": "davinci-002=tiny",
    "lora": "tuned=/adapter@tiny",
    "draft": "tiny=smaller",
    "engine": "toy=vllm",
    "engine_path": "vllm=/opt/vllm",
    "engine_arg": "--dtype=float16",
    "model_folder": "/srv/models",
    "otlp_endpoint": "http://collector:4318",
    "trace_ratio": "0.25",
    "trace_prompts": "on",
    "tokenizer": "there=/models/there",
    "upstream_key": "secret-of-the-other-server",
    "cluster": "10.0.0.5:6379",
    "openai_names": "off",
    "context_length": "512",
    "offline": "true",
    "cache_dir": "/somewhere",
    "host": "localhost",
    "port": "8123",
    "keep_alive": "5",
    "drain": "2.5s",
    "take_over": "true",
    "api_key": "sk-a",
    "api_key_file": "/keys",
    "allowed_host": "models.example",
    "allowed_origin": "https://play.example",
    "trusted_proxy": "10.0.0.0/8",
    "no_auth": "true",
    "profile": "Strict",
    "max_body": "8MB",
    "max_waiting": "5",
    "max_waiting_memory": "5",
    "max_wait": "5",
    "max_parallel": "5",
    "max_prompt_tokens": "5",
    "max_answer_logprobs": "5",
    "resume_window": "5",
    "resume_memory": "5",
    "max_text": "5",
    "content_filter": '{"name": "a", "patterns": ["b", "c,d"]}',
    "max_rows": "5",
    "kv_memory": "2GiB",
    "threads": "3",
    "runtime": "native",
    "precision": "exact",
    "weights": "int8",
    "prefix_cache": "off",
    "prefix_cache_dir": "/somewhere",
    "prefix_cache_disk": "5GB",
    "engine_process": "off",
    "engine_timeout": "5",
    "engine_wait": "5",
    "speculation": "off",
    "dialects": "llama-server",
    "log_level": "debug",
    "log_format": "json",
    "access_log": "no",
}


def test_content_filters_are_tables_in_the_file_and_an_array_in_the_environment() -> None:
    Path("onward.toml").write_text(
        '[[content_filter]]\nname = "keys"\npatterns = ["sk-[a-z]{4}", "a,b"]\naction = "omit"\n'
        '[[content_filter]]\nname = "mine"\nentry_point = "mine"\n',
        encoding="utf-8",
    )
    keys = values.ContentFilterSetting("keys", ("sk-[a-z]{4}", "a,b"), None, "omit")
    mine = values.ContentFilterSetting("mine", (), "mine", "stop")
    assert resolve_settings().settings.content_filter == (keys, mine)
    array = '[{"name": "keys", "patterns": ["sk-[a-z]{4}", "a,b"], "action": "omit"}]'
    assert resolve_settings(ONWARD_CONTENT_FILTER=array).settings.content_filter == (keys,)
    assert [values.content_filter(str(each)) for each in (keys, mine)] == [keys, mine]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("x", "must be a JSON object"),
        ('{"patterns": ["a"]}', "must have a name"),
        ('{"name": "a"}', "either patterns or an entry_point"),
        ('{"name": "a", "patterns": ["b"], "entry_point": "c"}', "either patterns or an entry_point"),
        ('{"name": "a", "patterns": "b"}', "array of strings"),
        ('{"name": "a", "patterns": ["b"], "action": "block"}', "stop or omit"),
        ('{"name": "a", "pattern": "b"}', "unknown key 'pattern'"),
    ],
)
def test_an_invalid_content_filter_is_rejected(table: str, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        resolve_settings({"content_filter": [table]})


def test_the_file_is_toml() -> None:
    Path("onward.toml").write_text(
        'port = 9\ndrain = 1.5\nno_auth = true\nmodel = "one"\n[alias]\n"gpt-3.5-turbo-instruct" = "one"\n',
        encoding="utf-8",
    )
    settings = resolve_settings().settings
    assert (settings.port, settings.drain, settings.no_auth, settings.model) == (9, 1.5, True, ("one",))
    assert settings.alias == (("gpt-3.5-turbo-instruct", "one"),)


def test_the_file_is_searched_for_in_the_working_and_the_configuration_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "onward").mkdir(parents=True)
    (home / "onward" / "onward.toml").write_text("port = 1", encoding="utf-8")
    assert resolve_settings(home=home).settings.port == 1
    Path("onward.toml").write_text("port = 2", encoding="utf-8")
    assert resolve_settings(home=home).settings.port == 2
    other = tmp_path / "other.toml"
    other.write_text("port = 3", encoding="utf-8")
    assert resolve_settings(home=home, ONWARD_CONFIG=str(other)).settings.port == 3
    assert resolve(environ={"ONWARD_CONFIG": "/nowhere"}, config=other).settings.port == 3


def test_the_users_own_file_is_theirs_in_its_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service works in /etc/onward, which systemd names: what is there may choose the database."""
    (folder := tmp_path / "onward").mkdir()
    (folder / "onward.toml").write_text("data_dir = '/var/lib/onward'", encoding="utf-8")
    monkeypatch.chdir(folder)
    homes = {"CONFIGURATION_DIRECTORY": f"{folder}:/etc/other", "XDG_CONFIG_HOME": "/nowhere"}
    for environ in (homes, {"XDG_CONFIG_HOME": str(tmp_path)}):
        resolved = resolve(environ=environ)
        assert resolved.settings.data_dir == Path("/var/lib/onward")
        assert resolved.file == folder / "onward.toml" and resolved.announcement is None
    with pytest.raises(SetupError, match="which only a settings file that was named may choose"):
        resolve(environ={"CONFIGURATION_DIRECTORY": "onward", "XDG_CONFIG_HOME": "/nowhere"})
    monkeypatch.chdir(tmp_path)
    assert resolve(environ=homes).settings.data_dir == Path("/var/lib/onward")


def test_settings_that_are_read_again_come_from_the_file_that_they_came_from(tmp_path: Path) -> None:
    """Otherwise a server would continue with the defaults: another model instead of its own."""
    path = tmp_path / "onward.toml"
    path.write_text("port = 1", encoding="utf-8")
    resolved = resolve_settings()
    path.write_text("port = 2", encoding="utf-8")
    assert resolved.again().port == 2
    path.unlink()
    with pytest.raises(SetupError, match=r"settings came from onward\.toml, and would now come from no file"):
        resolved.again()
    (home := tmp_path / "home" / "onward").mkdir(parents=True)
    (home / "onward.toml").write_text("port = 3", encoding="utf-8")
    resolved = resolve_settings(home=tmp_path / "home")
    assert resolved.again().port == 3
    path.write_text("port = 2", encoding="utf-8")
    with pytest.raises(SetupError, match=r"would now come from onward\.toml: put that right"):
        resolved.again()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("prot = 1", r"Unknown setting 'prot' in onward.toml; did you mean 'port'\?"),
        ("max-body = 1", r"Unknown setting 'max-body' in onward.toml; did you mean 'max_body'\?"),
        ("zzz = 1", "Unknown setting 'zzz' in onward.toml. The settings are: model, "),
        ("port = [1]", r"port in onward.toml must be a single value\."),
        ("[port]", r"port in onward.toml must be a single value\."),
        ("[serve]\nport = 1", r"onward.toml has a table \[serve\]: settings are written without tables"),
        ("port = ", "not valid TOML"),
        ("port = 1.5", "Invalid value '1.5' for port in onward.toml: must be an integer from 0 to 65535"),
        ("model = ['']", "Invalid value '' for model in onward.toml: must not be empty"),
    ],
)
def test_an_invalid_file_is_reported_in_a_sentence(content: str, words: str) -> None:
    Path("onward.toml").write_text(content, encoding="utf-8")
    with pytest.raises(SetupError, match=words):
        resolve_settings()


def test_a_named_file_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(SetupError, match="cannot be read"):
        resolve(environ={}, config=Path("/nowhere/onward.toml"))


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("port", "65536", "Invalid value '65536' for --port: must be an integer from 0 to 65535"),
        ("port", "x", "an integer"),
        ("max_rows", "0", "an integer of at least 1"),
        ("drain", "-1", "0 or more"),
        ("drain", "inf", "0 or more"),
        ("drain", "nan", "0 or more"),
        ("max_body", "12 parsecs", "such as 4096, 16MB or 2GiB"),
        ("max_body", "0", "such as"),
        ("kv_memory", "much", "or auto"),
        ("profile", "loose", "one of strict, default, lenient"),
        ("prefix_cache", "maybe", "true or false"),
        ("speculation", "on", "one of auto, off"),
        ("alias", ["a"], "NAME=MODEL"),
        ("host", " ", "empty"),
        ("trusted_proxy", ["10.0.0.1/8"], "must be an address or a network, such as"),
    ],
)
def test_the_error_names_the_value_its_origin_and_the_rule(name: str, raw: Any, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        resolve_settings({name: raw})


def test_an_invalid_secret_is_not_shown() -> None:
    with pytest.raises(SetupError) as caught:
        resolve_settings(ONWARD_API_KEY="my secret")
    assert "secret" not in str(caught.value)
    assert "ONWARD_API_KEY" in str(caught.value)


def test_keys_are_hidden_where_settings_are_shown() -> None:
    settings = Settings(api_key=("sk-a", "sk-b"))
    assert "sk-" not in repr(settings)
    assert "<2 hidden>" in repr(settings)
    assert "sk-" not in repr(Resolved(settings, {}))


def test_no_auth_cannot_be_combined_with_keys() -> None:
    with pytest.raises(SetupError, match="cannot be combined"):
        resolve_settings({"no_auth": "true"}, ONWARD_API_KEY="sk-a")


@pytest.mark.parametrize(
    ("raw", "value"),
    [("0", 0.0), (" 0.5 ", 0.5), ("1", 1.0), ("1.1", None), ("-0.1", None), ("nan", None), ("x", None)],
)
def test_a_ratio_is_from_0_to_1(raw: str, value: float | None) -> None:
    if value is not None:
        assert values.ratio(raw) == value
        return
    with pytest.raises(ValueError, match="from 0 to 1"):
        values.ratio(raw)


@pytest.mark.parametrize("raw", ["http://h:4318", " https://h/v1/traces "])
def test_a_url_is_taken_as_it_is(raw: str) -> None:
    assert values.http_url(raw) == raw.strip()


@pytest.mark.parametrize(
    "raw", ["h:4318", "grpc://h", "http://user:secret@h", "http://h?key=secret", "http://", "http://h:+80", ""]
)
def test_a_url_with_a_password_or_of_another_kind_is_refused_without_showing_it(raw: str) -> None:
    with pytest.raises(ValueError, match="must be a URL") as refused:
        values.http_url(raw)
    assert "secret" not in str(refused.value)


def test_a_prefix_cache_on_a_disk_needs_one_in_memory() -> None:
    with pytest.raises(SetupError, match="cannot be combined with --no-prefix-cache"):
        resolve_settings({"prefix_cache": "off", "prefix_cache_dir": "/somewhere"})


def test_periods_are_parsed_with_their_units() -> None:
    assert [values.period(raw) for raw in ("12h", " 90d", "2 w")] == [43_200, 7_776_000, 1_209_600]
    for raw in ("", "0d", "5", "1.5d", "d", "9999999d"):
        with pytest.raises(ValueError, match="such as 12h"):
            values.period(raw)


@pytest.mark.parametrize(
    ("raw", "amount"),
    [
        ("4096", 4096),
        ("1 KB", 1000),
        ("1kib", 1024),
        ("2GiB", 2**31),
        ("1.5MB", 1_500_000),
        ("4G", 2**32),
        ("7b", 7),
    ],
)
def test_sizes_are_parsed_with_their_units(raw: str, amount: int) -> None:
    assert values.size(raw) == amount


@given(st.integers(1, 2**50))
@hypothesis_settings(max_examples=examples(100))
def test_a_formatted_size_parses_to_itself(amount: int) -> None:
    assert values.size(values.format_size(amount)) == amount


@given(st.text(UNICODE, max_size=12))
@hypothesis_settings(max_examples=examples(200))
def test_any_text_is_parsed_or_rejected(raw: str) -> None:
    for option in options():
        try:
            option.parser(raw)
        except ValueError as problem:
            assert str(problem)


def test_a_home_folder_that_cannot_be_determined_is_one_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an arbitrary user id in a container."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/nonexistent/.cache/onward")
    assert resolve({}, environ={}).settings.model == ("storyteller",)
    assert SettingsCommand("serve").get_help(click.Context(click.Command("serve")))


def test_an_unknown_variable_is_logged_with_the_closest_setting(caplog: pytest.LogCaptureFixture) -> None:
    resolve_settings(ONWARD_PROT="1", ONWARD_BASE_URL="http://x", OTHER="1")
    assert caplog.messages == ["ONWARD_PROT is not a setting and is ignored; did you mean ONWARD_PORT?"]


def found(text: str, mode: int = 0o644) -> Path:
    """Write an onward.toml that no flag names."""
    path = Path("onward.toml")
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_a_file_that_was_found_is_announced_with_what_it_chose() -> None:
    assert resolve_settings().announcement is None
    found('model = ["a"]\nthreads = 2\nport = 1')
    resolved = resolve_settings({"port": "3"})
    assert resolved.announcement == "Using onward.toml of this folder for model, threads"
    named = resolve(environ={}, config=Path("onward.toml"))
    assert named.announcement is None, "nobody needs to be reminded of a file that was named"


def test_a_limit_of_a_folder_that_a_found_file_does_not_choose_is_not_chosen_either() -> None:
    found('prefix_cache_dir = "/there"\nprefix_cache_disk = "1GB"')
    chosen = resolve_settings().settings
    assert (chosen.prefix_cache_dir, chosen.prefix_cache_disk) == (None, Settings.prefix_cache_disk)


def test_a_file_that_was_found_does_not_choose_folders_code_or_downloads() -> None:
    found('cache_dir = "/elsewhere"\nprefix_cache_dir = "/there"\nalias = ["a=org/b"]\nmodel = ["org/c"]\nthreads = 3')
    full = resolve_settings().settings
    limited = resolve(environ={}, limits_found_file=True)
    assert (full.cache_dir, full.prefix_cache_dir, full.threads) == (Settings().cache_dir, None, 3)
    assert (limited.settings.cache_dir, limited.settings.threads) == (Settings().cache_dir, 3)
    assert limited.announcement is not None
    assert "(not for cache_dir, prefix_cache_dir: pass --config onward.toml" in limited.announcement
    assert not limited.may_download()
    assert not limited.may_download("org/d", "a")
    assert limited.may_download("org/d")
    by_flag = resolve({"model": ["org/e"]}, environ={}, limits_found_file=True)
    assert by_flag.may_download()
    named = resolve(environ={}, config=Path("onward.toml"), limits_found_file=True)
    assert named.settings == replace(full, cache_dir=Path("/elsewhere"), prefix_cache_dir=Path("/there"))
    assert named.may_download("a")
    found('[[content_filter]]\nname = "mine"\nentry_point = "mine"\n')
    assert resolve_settings().settings.content_filter
    with pytest.raises(SetupError, match=r"'mine' of onward.toml in this folder would run code"):
        resolve(environ={}, limits_found_file=True)
    found('[[content_filter]]\nname = "mine"\npatterns = ["x"]\n')
    assert resolve(environ={}, limits_found_file=True).settings.content_filter


@pytest.mark.parametrize(
    ("text", "name"),
    [('engine = "vllm"', "engine"), ('engine_path = "vllm=/x"', "engine_path"), ('engine_arg = "--x"', "engine_arg")],
)
def test_a_file_that_was_found_starts_no_program_for_any_command(text: str, name: str) -> None:
    found(text)
    with pytest.raises(SetupError, match=f"^{name} in onward.toml of this folder would choose a program to start"):
        resolve_settings()
    assert getattr(resolve(environ={}, config=Path("onward.toml")).settings, name)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("engine", "vllm", ("", "vllm")),
        ("engine", "m=auto", ("m", "auto")),
        ("engine", "a=b=sglang", ("a=b", "sglang")),
        ("engine_path", "vllm=/opt/vllm", ("vllm", Path("/opt/vllm"))),
        ("engine_arg", "--dtype=float16", ("", "--dtype=float16")),
        ("engine_arg", "vllm=--dtype=float16", ("vllm", "--dtype=float16")),
        ("engine_arg", "float16", ("", "float16")),
    ],
)
def test_engines_and_their_arguments_are_parsed(name: str, raw: str, value: tuple[str, object]) -> None:
    assert getattr(resolve_settings({name: [raw]}).settings, name) == (value,)


@pytest.mark.parametrize(
    ("name", "raw"), [("engine", "tgi"), ("engine", "vllm=m"), ("engine_path", "/opt/vllm"), ("engine_arg", "vllm=")]
)
def test_engines_that_cannot_be_are_refused(name: str, raw: str) -> None:
    with pytest.raises(SetupError, match=f"^Invalid value '{raw}' for --{name.replace('_', '-')}: must "):
        resolve_settings({name: [raw]})


@pytest.mark.parametrize("line", ['database = "sqlite:///x.db"', 'data_dir = "x"'])
def test_a_file_that_was_found_does_not_choose_the_database(line: str) -> None:
    found(line)
    with pytest.raises(SetupError, match="which only a settings file that was named may choose"):
        resolve_settings()
    name = line.partition(" ")[0]
    assert getattr(resolve(environ={}, limits_found_file=True).settings, name) is None
    assert getattr(resolve(environ={}, config=Path("onward.toml")).settings, name) is not None
    other = {"database": "sqlite:///y.db", "data_dir": "y"}[name]
    assert str(getattr(resolve_settings({name: other}).settings, name)) == other


def test_prices_and_urls_of_databases_are_checked_and_urls_not_shown() -> None:
    assert resolve_settings({"price": ["a=b=2/3", "c=0.000001/10/1"]}).settings.price == (
        ("a=b", 2_000_000, 3_000_000, 2_000_000),
        ("c", 1, 10_000_000, 1_000_000),
    )
    for wrong in ("a", "a=1", "a=1/2/3/4", "=1/2", "a=-1/2", "a=1/2.0000001", "a=x/y"):
        with pytest.raises(SetupError, match="MODEL=PROMPT/COMPLETION"):
            resolve_settings({"price": [wrong]})
    assert resolve_settings({"database": "postgres://u@h/d"}).settings.database == "postgresql://u@h/d"
    for wrong in ("mysql://u:hunter2@h/d", "sqlite://", "onward.db"):
        with pytest.raises(SetupError, match="must be sqlite:///PATH or postgresql") as caught:
            resolve_settings({"database": wrong})
        assert "hunter2" not in str(caught.value)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such owners")
def test_a_file_that_was_found_and_that_others_can_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found("port = 1", 0o646)
    with pytest.raises(SetupError, match="can be written by every user; run chmod o-w on it"):
        resolve_settings()
    assert resolve(environ={"ONWARD_CONFIG": "onward.toml"}).settings.port == 1
    found("port = 1", 0o664)
    assert resolve_settings().settings.port == 1
    owner = Path("onward.toml").stat().st_uid
    os.chown("onward.toml", owner, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        assert resolve_settings().settings.port == 1, "the system may configure its users"
        os.chown("onward.toml", 12345, -1)
    with pytest.raises(SetupError, match=r"belongs to another user; pass --config onward.toml"):
        resolve_settings()


@pytest.mark.parametrize("content", ["a = " + "[" * 100_000, "#" * 1_000_001], ids=["deep", "large"])
def test_a_file_of_any_depth_and_size_is_reported_in_one_message(content: str) -> None:
    found(content)
    with pytest.raises(SetupError, match=r"onward.toml is (nested too deeply|larger than 1 MB|not valid TOML)"):
        resolve_settings()
