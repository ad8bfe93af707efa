"""`onward @manpages`: the manual page, as OpenAI's command line writes its own, for packagers."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import click

from onward.cli.command import CONTEXT, command_context, subcommands

HELP = """Write the manual page into DIR/man1: onward.1.gz, and with --text also onward.1.

man -l DIR/man1/onward.1.gz shows it.
"""


def write(output: str, gzipped: bool, text: bool) -> None:
    page = manual(click.get_current_context().find_root().command).encode()
    folder = Path(output) / "man1"
    folder.mkdir(parents=True, exist_ok=True)
    if text:
        (folder / "onward.1").write_bytes(page)
    if gzipped:
        (folder / "onward.1.gz").write_bytes(gzip.compress(page, mtime=0))
    click.echo(f"Wrote manpages to {output}")


def manual(root: click.Command) -> str:
    """Return the manual page of a command and all its subcommands that are not hidden, in roff."""
    import onward

    assert isinstance(root, click.Group)
    lines = [
        f'.TH ONWARD 1 "" "onward {onward.__version__}" "User Commands"',
        *(".SH NAME", f"onward \\- {_escaped(root.help or '')}"),
        *(".SH SYNOPSIS", "\\fBonward\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]"),
        *(".SH OPTIONS", *_options(root, command_context(root, "onward"))),
        ".SH COMMANDS",
    ]
    for path, command in subcommands(root, "onward"):
        context = command_context(command, path)
        usage = _escaped(" ".join([path, *command.collect_usage_pieces(context)])).replace('"', "\\(dq")
        lines += [f'.SS "{usage}"', *_paragraphs(command.help or ""), *_options(command, context)]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a help text; a paragraph that begins with \\b keeps its line ends."""
    for paragraph in text.strip().split("\n\n"):
        is_literal = paragraph.startswith("\b")
        yield from (".PP", ".nf") if is_literal else (".PP",)
        yield from (_escaped(line.strip()) for line in paragraph.strip("\b\n").splitlines())
        if is_literal:
            yield ".fi"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            names, words = record
            yield from (".TP", f"\\fB{_escaped(names)}\\fR", *map(_escaped, words.splitlines() or [""]))


def _escaped(text: str) -> str:
    """Escape text so that roff prints it unchanged, anywhere in a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


command = click.Command(
    "@manpages",
    callback=write,
    help=HELP,
    params=[
        click.Option(["--output", "-o"], default="man", metavar="DIR", show_default=True, help="Folder to write to."),
        click.Option(["--gzip/--no-gzip", "gzipped"], default=True, help="Write onward.1.gz; the default."),
        click.Option(["--text"], is_flag=True, help="Also write onward.1, not compressed."),
    ],
    context_settings=CONTEXT,
    hidden=True,
)
