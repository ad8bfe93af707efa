"""`onward completion bash|zsh|fish`: shell completion scripts."""

from __future__ import annotations

import click

from onward.cli.argument import Argument
from onward.cli.command import CONTEXT

SHELLS = ("bash", "zsh", "fish")
HELP = """Print a shell script that completes onward's commands, flags and values.

\b
bash:  onward completion bash > ~/.local/share/bash-completion/completions/onward
zsh:   onward completion zsh > "${fpath[1]}/_onward"
fish:  onward completion fish > ~/.config/fish/completions/onward.fish
"""


def show(shell: str) -> None:
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    completion = get_completion_class(shell)
    assert completion is not None
    source = completion(root, {}, "onward", "_ONWARD_COMPLETE")
    click.echo(source.source_template % source.source_vars())


command = click.Command(
    "completion",
    callback=show,
    help=HELP,
    params=[Argument("shell", "Shell to print the script for.", type=click.Choice(SHELLS))],
    context_settings=CONTEXT,
)
