"""Shell completion: commands, flags, and the values of every flag that has a fixed set of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from onward import values
from onward.cli.request.flags import request_flags
from onward.cli.root import root
from onward.settings import options
from tests.examples import slow_but

from ..conftest import onward
from ..terminal import COMMAND

SHELLS = ("bash", "zsh", "fish")
BOOLEANS = {flag.flag for flag in request_flags() if flag.is_boolean}
SETTINGS = {option.flag: option.parser.choices for option in options() if isinstance(option.parser, values.choice)}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def choices(option: click.Option) -> tuple[str, ...]:
    """The values of an option that has a fixed set of them."""
    if isinstance(option.type, click.Choice):
        return tuple(option.type.choices)
    if option.opts[-1] in BOOLEANS and not option.is_flag:
        return ("true", "false", "null")
    return SETTINGS.get(option.opts[-1], ())


FLAGS = {
    f"{' '.join(path)} {option.opts[-1]}": (path, option.opts[-1], choices(option))
    for path, command in commands(root)
    for option in command.params
    if isinstance(option, click.Option) and choices(option)
}


def offered(*words: str, shell: str = "bash") -> list[str]:
    """What click offers for the last word."""
    kind = get_completion_class(shell)
    assert kind is not None
    return [
        each.value for each in kind(root, {}, "onward", "_ONWARD_COMPLETE").get_completions([*words[:-1]], words[-1])
    ]


def complete(shell: str, *words: str) -> list[str]:
    """What a shell receives for the last word."""
    position = words[-1] if shell == "fish" else str(len(words))
    asked = {"COMP_WORDS": " ".join(["onward", *words]), "COMP_CWORD": position}
    environment = {**os.environ, "_ONWARD_COMPLETE": f"{shell}_complete", **asked}
    done = subprocess.run([*COMMAND], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    return lines[1::3] if shell == "zsh" else [line.partition(",")[2].partition("\t")[0] for line in lines]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_valid(shell: str) -> None:
    script = onward("completion", shell).stdout
    assert f"_ONWARD_COMPLETE={shell}_complete" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n", "/dev/stdin"], input=script, text=True, check=True, capture_output=True)


def test_the_flags_with_a_fixed_set_of_values_are_found() -> None:
    found = {(path[-1], flag) for path, flag, _ in FLAGS.values()}
    assert len(FLAGS) > 20
    assert {("serve", "--profile"), ("serve", "--log-level"), ("create", "--precision"), ("list", "--format")} <= found
    assert {("create", "--echo"), ("completions.create", "--format-error")} <= found


@pytest.mark.parametrize("name", slow_but([*FLAGS][::4], FLAGS))
def test_every_value_of_a_flag_is_offered(name: str) -> None:
    path, flag, expected = FLAGS[name]
    assert offered(*path, flag, "") == list(expected)
    assert offered(*path, flag, expected[0][:2]) == [each for each in expected if each.startswith(expected[0][:2])]


@pytest.mark.parametrize("shell", slow_but(["bash"], SHELLS))
def test_each_shell_completes_commands_flags_and_values(shell: str) -> None:
    assert complete(shell, "comp") == ["completions", "completion"]
    assert complete(shell, "completions", "create", "--max-t") == ["--max-tokens"]
    assert complete(shell, "serve", "--profile", "l") == ["lenient"]


def test_values_of_other_kinds_are_completed() -> None:
    assert offered("completions", "cr") == ["create"]
    assert offered("completions", "create", "--format", "explore", "--max-t") == ["--max-tokens"]
    assert offered("completion", "z") == ["zsh"]
    assert offered("help", "models", "re") == ["retrieve"]
    assert offered("help", "nothing", "re") == offered("help", "doctor", "re") == []
    assert offered("serve", "--kv-memory", "a") == ["auto"]
    Path("story.txt").write_text("x", encoding="utf-8")
    assert offered("completions", "create", "--prompt", "@st") == ["@story.txt"]


@pytest.mark.parametrize(
    "words",
    [
        ("completions", "create", "--model"), ("serve", "--model"), ("serve",), ("models", "show"),
        ("models", "retrieve"), ("models", "retrieve", "--model"), ("tokenize", "--model"),
        ("batch", "run", "in.jsonl", "--model"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_names_of_models_are_offered(words: tuple[str, ...]) -> None:
    assert offered(*words, "sto") == ["storyteller"]


@pytest.mark.parametrize("words", [("pull",), ("models", "pull"), ("models", "rm"), ("serve", "--model")], ids=" ".join)
def test_names_of_the_catalogue_are_offered(words: tuple[str, ...]) -> None:
    assert offered(*words, "smollm2-3") == ["smollm2-360m"]
