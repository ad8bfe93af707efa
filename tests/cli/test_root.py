"""`onward`: fast help, clear messages, exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import onward
from onward.cli import global_flags
from onward.cli.root import COMMANDS, root
from onward.cli.settings_command import SettingsCommand
from onward.errors import SetupError
from onward.settings import GROUPS, Resolved, options
from tests.cli.commands.test_models import fake_model

from .conftest import onward as command
from .conftest import runner


@pytest.fixture
def onward_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return lambda *arguments: runner().invoke(root, list(arguments), prog_name="onward")


def test_help_lists_every_command(onward_command: Callable[..., Result]) -> None:
    for flag in ("-h", "--help"):
        result = onward_command(flag)
        assert result.exit_code == 0
        for name, (_, line) in COMMANDS.items():
            assert f"  {name}" in result.stdout and line in result.stdout


def test_lists_of_commands_are_not_cut_off(onward_command: Callable[..., Result]) -> None:
    for name in COMMANDS:
        _, _, listed = onward_command(name, "-h").stdout.partition("Commands:\n")
        assert "..." not in listed


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded(name: str, onward_command: Callable[..., Result]) -> None:
    result = onward_command(name, "-h")
    assert result.exit_code == 0
    assert f"Usage: onward {name}" in result.stdout


def test_the_version_is_the_packages(onward_command: Callable[..., Result]) -> None:
    for flag in ("--version", "-v", "-V"):
        result = onward_command(flag)
        assert (result.exit_code, result.stdout) == (0, f"onward {onward.__version__}\n")


def test_the_version_and_the_help_are_commands_too(onward_command: Callable[..., Result]) -> None:
    assert onward_command("version").stdout == onward_command("--version").stdout
    assert onward_command("help").stdout == onward_command("--help").stdout
    for words in (["serve"], ["completions"], ["completions", "create"]):
        assert onward_command("help", *words).stdout == onward_command(*words, "--help").stdout
    for wrong in (["srve"], ["completions", "crate"], ["serve", "more"]):
        assert onward_command("help", *wrong).exit_code == 2


def test_the_help_of_serve_shows_every_setting_in_its_group(onward_command: Callable[..., Result]) -> None:
    text = onward_command("serve", "--help").stdout
    sections = [text.index(f"\n{group}:\n") for group in GROUPS]
    assert sections == sorted(sections)
    for option in options():
        assert option.flag in text
        assert option.environment in text


def test_flags_that_constrain_the_text_have_their_section(onward_command: Callable[..., Result]) -> None:
    _, _, rest = onward_command("completions", "create", "--help").stdout.partition("\nConstraints on the text:\n")
    section, _, _ = rest.partition("\n\n")
    for flag in ("--response-format", "--json-schema", "--regex", "--choice", "--grammar"):
        assert f"  {flag} " in section


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["srve"], "Unknown command 'srve'. Did you mean 'serve'?"),
        (["zzz"], "Unknown command 'zzz'."),
        (["serve", "--prot", "1"], "--port"),
        (["serve", "--port", "x"], "Invalid value 'x' for --port: must be an integer from 0 to 65535."),
        (["serve", "--api-key", "my secret"], "Invalid value (hidden) for --api-key"),
        (["version", "surplus"], "unexpected extra argument"),
        (["serve", "--port"], "requires an argument"),
    ],
)
def test_a_usage_error_exits_with_code_2(
    arguments: list[str], words: str, onward_command: Callable[..., Result]
) -> None:
    result = onward_command(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "my secret" not in result.output


def test_every_global_flag_may_stand_before_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags declared in the future too: there is no second list of them."""
    declared = (*global_flags._CONNECTION_OPTIONS, (["--region", "-z"], "NAME", "Where."))
    monkeypatch.setattr(global_flags, "_CONNECTION_OPTIONS", declared)
    for option in [*global_flags.connection_options(short_organization=True), *global_flags.output_options()]:
        for name in option.opts:
            given = [name] if getattr(option, "is_flag", False) else [name, "value"]
            assert global_flags.hoist([*given, "--debug", "models", "list"]) == ["models", *given, "--debug", "list"]
    assert global_flags.hoist(["--region=north", "models"]) == ["models", "--region=north"]
    for alone in (["--debug"], ["--debug=1", "models"], ["--other", "models"], ["models", "--debug"], ["-z"]):
        assert global_flags.hoist(alone) == alone


def test_a_setup_error_is_one_line_and_code_1(
    onward_command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONWARD_PORT", "x")
    result = onward_command("serve")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "onward: Invalid value 'x' for ONWARD_PORT: must be an integer from 0 to 65535.\n"


def test_a_missing_settings_file_exits_with_code_1(onward_command: Callable[..., Result]) -> None:
    result = onward_command("serve", "--config", "nowhere.toml")
    assert result.exit_code == 1
    assert result.stderr == "onward: The settings file nowhere.toml cannot be read: No such file or directory.\n"


class Probe:
    """A command with the settings' flags that keeps what it was given."""

    def __init__(self, problem: BaseException | None = None) -> None:
        self.resolved: Resolved | None = None
        self._problem = problem

    def run(self, *arguments: str) -> Result:
        command = SettingsCommand("probe", callback=self._keep)
        group = type(root)("onward")
        group.resolve_command = lambda ctx, args: ("probe", command, args[1:])  # type: ignore[method-assign]
        return runner().invoke(group, ["probe", *arguments])

    def _keep(self, resolved: Resolved) -> None:
        self.resolved = resolved
        if self._problem is not None:
            raise self._problem


def test_flags_become_settings(onward_command: Callable[..., Result]) -> None:
    probe = Probe()
    result = probe.run(
        "--model", "a", "--model", "b", "--alias", "x=a", "--port", "1", "--no-prefix-cache", "--no-auth"
    )
    assert result.exit_code == 0, result.output
    assert probe.resolved is not None
    settings = probe.resolved.settings
    assert settings.model == ("a", "b")
    assert settings.alias == (("x", "a"),)
    assert (settings.port, settings.prefix_cache, settings.no_auth, settings.access_log) == (1, False, True, True)
    origins = probe.resolved.origins
    assert (origins["prefix_cache"], origins["access_log"]) == ("--prefix-cache", "default")


def test_a_switch_on_the_command_line_beats_the_environment(
    onward_command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONWARD_ACCESS_LOG", "false")
    probe = Probe()
    assert probe.run("--access-log").exit_code == 0
    assert probe.resolved is not None and probe.resolved.settings.access_log


@pytest.mark.parametrize(("problem", "code"), [(SetupError("No."), 1), (KeyboardInterrupt(), 130)])
def test_each_kind_of_end_has_its_exit_code(
    problem: BaseException, code: int, onward_command: Callable[..., Result]
) -> None:
    result = Probe(problem).run()
    assert result.exit_code == code
    assert "Traceback" not in result.output


def test_the_package_is_a_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "onward", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"onward {onward.__version__}\n"


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        onward.nope  # noqa: B018


EXAMPLES = [
    (["models", "list"], "data.0.id"),
    (["models", "show", "./mine"], "id"),
    (["models", "pull", "./mine"], "path"),
    (["tokenize", "-m", "toy", "a"], "count"),
    (["config", "show"], "settings.0.value"),
    (["doctor"], "findings.0.words"),
]


@pytest.mark.parametrize(("words", "path"), EXAMPLES, ids=lambda value: " ".join(value))
def test_the_example_path_in_the_help_matches(words: list[str], path: str) -> None:
    fake_model(Path("mine"))
    names = [word for word in words[:2] if word not in ("-m",)]
    assert f"such as {path}." in " ".join(command(*names, "--help").stdout.split())
    assert "found nothing" not in command(*words, "--transform", path).stderr


@pytest.mark.parametrize("words", [["config", "show"], ["completion"], ["models", "pull"]])
def test_commands_that_never_connect_have_no_connection_flags(words: list[str]) -> None:
    help = command(*words, "--help").stdout
    for flag in ("--base-url", "--project", "--api-key", "--format-error"):
        assert flag not in help
    assert "--base-url" in command("models", "list", "--help").stdout
