"""Hints for commands and flags that do not exist, such as those of other tools."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import click

_CREATE = "To complete a prompt: onward completions create 'Once upon a time'"
_CHAT = "Onward completes text and has no chat: onward completions create 'Once upon a time'"
_SERVE = "To start a server: onward serve"
_STOP = "A server runs until Ctrl-C or SIGTERM ends it."
_LIST = "To list the models: onward models list"
_PULL = "To use a model from the hub: --model ORG/REPO downloads it; to only download it: onward pull ORG/REPO"
_SHOW = "To show a model: onward models show NAME"
DELETE_HINT = (
    "`onward models rm` removes what `onward pull` took from a package index. `onward models list` shows the folder of "
    "every other model; delete it by hand."
)
_TOKENIZE = "To show the tokens of a text: onward tokenize 'Once upon a time'"
_DOCTOR = "To check this machine: onward doctor"
_SETTINGS = "To show the settings: onward config show"

_HINTS = {
    "run": _CREATE, "generate": _CREATE, "gen": _CREATE, "complete": _CREATE, "create": _CREATE, "prompt": _CREATE,
    "ask": _CREATE, "infer": _CREATE, "predict": _CREATE, "text": _CREATE, "continue": _CREATE,
    "chat": _CHAT, "repl": _CHAT, "talk": _CHAT, "responses": _CHAT, "messages": _CHAT, "chat.completions": _CHAT,
    "start": _SERVE, "up": _SERVE, "server": _SERVE, "launch": _SERVE, "api-server": _SERVE, "web": _SERVE,
    "stop": _STOP, "down": _STOP, "kill": _STOP, "restart": _STOP,
    "list": _LIST, "ls": _LIST, "ps": _LIST, "tags": _LIST, "model": _LIST,
    "download": _PULL, "get": _PULL, "install": _PULL, "add": _PULL, "fetch": _PULL, "import": _PULL,
    "show": _SHOW, "inspect": _SHOW, "info": _SHOW,
    "rm": DELETE_HINT, "remove": DELETE_HINT, "delete": DELETE_HINT, "uninstall": DELETE_HINT,
    "tokens": _TOKENIZE, "token": _TOKENIZE, "count": _TOKENIZE, "encode": _TOKENIZE,
    "check": _DOCTOR, "status": _DOCTOR, "health": _DOCTOR, "diagnose": _DOCTOR,
    "settings": _SETTINGS, "env": _SETTINGS, "set": _SETTINGS,
}  # fmt: skip
"""Command of another tool, or a likely mistake → what to do instead."""

_FLAGS = {
    "--temp": "--temperature",
    "--tokens": "--max-tokens",
    "--max-new-tokens": "--max-tokens",
    "--max-length": "--max-tokens",
    "--num-predict": "--max-tokens",
    "--length": "--max-tokens",
    "--limit": "--max-tokens",
    "--topp": "--top-p",
    "--topk": "--top-k",
    "--text": "--prompt",
    "--input": "--prompt",
    "--file": "--prompt",
    "--num": "--n",
    "--count": "--n",
    "--num-return-sequences": "--n",
    "--candidates": "--n",
    "--stop-sequence": "--stop",
    "--stop-sequences": "--stop",
    "--stop-words": "--stop",
    "--streaming": "--stream",
    "--no-stream": "--stream",
    "--rep-pen": "--repetition-penalty",
    "--top-logprobs": "--logprobs",
    "--url": "--base-url",
    "--server": "--base-url",
    "--endpoint": "--base-url",
    "--key": "--api-key",
    "--json": "--format",
    "--verbose": "--debug",
    "--model-path": "--model",
    "--served-model-name": "--alias",
    "--ctx-size": "--context-length",
    "--max-model-len": "--context-length",
    "--dtype": "--precision",
    "--address": "--host",
    "--bind": "--host",
    "--listen": "--host",
    "--max-num-seqs": "--max-rows",
    "--kv-cache": "--kv-memory",
    "--kv-cache-size": "--kv-memory",
    "--kv-cache-memory": "--kv-memory",
}
"""Flag of another tool, or a likely mistake → the flag of that meaning."""

_MIN_SIMILARITY = 0.75
"""difflib's ratio, 0 to 1, of two spellings from which one may be a typing error for the other."""

COMMAND_KEY = "onward.command"
"""In a click context's `meta`: the command that runs, which groups enter."""

_EXTRA_WORDS = "Put a prompt of several words in quotes."


def command_hint(name: str, commands: Iterable[str]) -> str:
    """Return a sentence about the unknown command `name` of a group with these `commands`; empty if none fits."""
    commands = list(commands)
    if name in commands:
        return ""
    if " " in name.strip():
        return runnable(_CREATE)
    near = _similar(name, commands)
    hint = _HINTS.get(name.lower(), "")
    return runnable(hint) or (f"Did you mean {near[0]!r}?" if near else "")


def corrected(problem: click.UsageError) -> click.UsageError:
    """Return the error with a hint: the flag or command that was probably meant, or quotes around a prompt."""
    if isinstance(problem, click.NoSuchOption) and problem.ctx is not None:
        return _corrected_flag(problem, problem.ctx)
    command = problem.ctx.command if problem.ctx else None
    if isinstance(problem, click.BadParameter) and command is not None and command.name == "completion":
        space = "\n" if isinstance(problem, click.MissingParameter) else " "  # after a list of what may be named
        return click.UsageError(f"{problem.format_message()}{space}{runnable(_CREATE)}", problem.ctx)
    is_prompt = command is not None and any(each.name == "positional" for each in command.params)
    if is_prompt and problem.message.startswith("Got unexpected extra argument"):
        return click.UsageError(f"{problem.message.rstrip('.')}. {_EXTRA_WORDS}", problem.ctx)
    return problem


def _corrected_flag(problem: click.NoSuchOption, context: click.Context) -> click.NoSuchOption:
    options = [each for each in context.command.get_params(context) if isinstance(each, click.Option)]
    visible = [name for option in options if not option.hidden for name in (*option.opts, *option.secondary_opts)]
    name = problem.option_name
    meant = _FLAGS.get(name.replace("_", "-"))
    if meant not in visible and (parameter := _request_flag(meant or name, context)):
        hint = f" {parameter!r} is a parameter of requests: pass it to {runnable('`onward completions create`')}."
    else:
        near = [meant] if meant in visible else _similar(name, visible)
        hint = f" Did you mean {near[0]!r}?" if near else ""
    return click.NoSuchOption(name, f"No such option {name!r}.{hint}", ctx=context)


def _request_flag(name: str, context: click.Context) -> str | None:
    """Return the flag of that name of `onward completions create` if it was passed to `onward serve`."""
    if context.command.name != "serve":
        return None
    from onward.cli.request.flags import request_flags

    spelled = name.replace("_", "-")
    return spelled if any(spelled == each.flag for each in request_flags()) else None


def known_flags(message: str) -> str:
    """Return a message whose advice the running command can follow: a setting for which it has no flag is named by its
    environment variable, which every command reads."""
    context = click.get_current_context(silent=True)
    if context is None or "--" not in message:
        return message
    command: click.Command = context.meta.get(COMMAND_KEY, context.command)
    from onward.settings.declared import options

    own = {flag for parameter in command.params for flag in parameter.opts}
    variables = {option.flag: option.environment for option in options() if option.flag not in own}

    def named(found: re.Match[str]) -> str:
        variable = variables.get(found["flag"])
        if variable is None:
            return found[0]
        return f"set {variable}{'=' if found['space'] else ''}" if found["verb"] else variable + found["space"]

    return re.sub(r"(?P<verb>\bpass )?(?<![\w-])(?P<flag>--[a-z][a-z-]+)(?P<space> ?)", named, message)


def runnable(message: str) -> str:
    """Return a message whose commands can be typed as they stand: `onward` may not be on PATH, and the `pip` that is
    there may be that of another environment."""
    from onward.models.registry import program

    message = re.sub(r"(?<![\w./-])onward (?=[a-z])", lambda _: f"{program()} ", message)
    return re.sub(r"(?<![\w./-])pip install(?= '(?:onward|httpx2)\[)", lambda _: pip_install(), message)


def pip_install() -> str:
    """Return the command that installs packages where this program finds them."""
    import shutil

    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python}"
    found = shutil.which("pip")
    is_own = found is not None and Path(found).parent == Path(sys.executable).parent
    return "pip install" if is_own else f"{python} -m pip install"


def _similar(name: str, names: list[str]) -> list[str]:
    """Return the closest match among the names, if one is close enough to be meant."""
    from difflib import get_close_matches

    return get_close_matches(name, names, n=1, cutoff=_MIN_SIMILARITY)
