"""`onward help`, `onward version` and `onward completion`: what onward says about itself, and to shells."""

from __future__ import annotations

import click

from onward.cli.command import CONTEXT, Argument

SHELLS = ("bash", "zsh", "fish")
_COMPLETION_HELP = """Print a shell script that completes onward's commands, flags and values.

\b
bash:  onward completion bash > ~/.local/share/bash-completion/completions/onward
zsh:   onward completion zsh > "${fpath[1]}/_onward"
fish:  onward completion fish > ~/.config/fish/completions/onward.fish
"""


def show_help(names: tuple[str, ...]) -> None:
    context = click.get_current_context().find_root()
    for name in names:
        context = _inner(context, name)
    click.echo(context.get_help())


def _inner(context: click.Context, name: str) -> click.Context:
    """Return the context of command `name` in the group of `context`. Raises UsageError."""
    if not isinstance(context.command, click.Group):
        raise click.UsageError(f"`{context.command_path}` has no subcommands.", context)
    _, command, _ = context.command.resolve_command(context, [name])
    assert command is not None
    return click.Context(command, context, info_name=name, **command.context_settings)


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the commands, or the subcommands of those already named."""
    inner = context.find_root()
    for name in context.params.get("names") or ():
        if not isinstance(inner.command, click.Group) or name not in inner.command.list_commands(inner):
            return []
        inner = _inner(inner, name)
    group = inner.command
    if not isinstance(group, click.Group):
        return []
    return [name for name in group.list_commands(inner) if name.startswith(incomplete)]


_help = click.Command(
    "help",
    callback=show_help,
    help="Show help for a command, such as `onward help completions create`; without a command, for onward.",
    params=[Argument("names", "Command and subcommand.", nargs=-1, metavar="[COMMAND]...", shell_complete=_complete)],
    context_settings=CONTEXT,
)


def show_version() -> None:
    import onward

    click.echo(f"onward {onward.__version__}")


_version = click.Command(
    "version", callback=show_version, help="Show the version. Same as --version, -v and -V.", context_settings=CONTEXT
)


def show_script(shell: str) -> None:
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    completion = get_completion_class(shell)
    assert completion is not None
    source = completion(root, {}, "onward", "_ONWARD_COMPLETE")
    click.echo(source.source_template % source.source_vars())


_completion = click.Command(
    "completion",
    callback=show_script,
    help=_COMPLETION_HELP,
    params=[Argument("shell", "Shell to print the script for.", type=click.Choice(SHELLS))],
    context_settings=CONTEXT,
)


def command(name: str) -> click.Command:
    """Return the command of a name."""
    return {"help": _help, "version": _version}.get(name, _completion)
