"""Writes the command line's reference page from the commands: `python -m onward.cli.reference`."""

# ruff: noqa: E501 - the rows of a Markdown table cannot be broken

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from onward.cli.command import CONTEXT
from onward.cli.commands.completions import RequestCommand
from onward.cli.main import main
from onward.cli.output.errors import DOCUMENTED

INTRODUCTION = """# The command line

<!-- Written by `python -m onward.cli.reference`. Do not edit. -->

Flags of `completions create`, in the page's first part, come from the one table of [request parameters](parameters.md).
Global flags may stand before or after the command. Names may be written with `_` for `-`.
"""

VALUES = """## Values of request flags

| written | sent |
|---|---|
| `--prompt 'This is a test.'` | the text |
| `--prompt '[1, 2, 3]'`, `'[[1, 2], [3]]'`, `'["a", "b"]'`, `'[a, b]'` | token ids, lists of token ids, texts |
| `--prompt '"[1, 2]"'` | the text `[1, 2]` |
| `--prompt 'Q: why?'`, `42`, `true`, `'# x'`, `'- a'`, `''` | the text as it stands |
| `--prompt @story.txt`, `--suffix @end.txt` | the file's text, as it is; refused where it is not UTF-8 (OpenAI's tool sends base64) |
| `--prompt @file://p`, `@data://p` | the file as text, like `@p`; the file's bytes in base64 |
| `--prompt '\\@home'` | the text `@home` |
| `--prompt @home` | the file's text; where no file has that name and it has no `.` and no `/`, the text `@home` as in OpenAI's tool, and a note on stderr |
| `--prompt @missing.txt`, `@no/such` | refused: the file cannot be read |
| `--prompt -`, `--prompt @-` | standard input, as it is |
| `--stop '"\\n"'`, `--stop '\\n'`, `--stop '["\\n", END]'` | a newline; backslash and n; both stops |
| `--stop a --stop b` | `["a", "b"]`: given several times it adds up, the last of another flag wins |
| `--logit-bias '{"50256": -100}'` | the object; YAML or JSON |
| `--prediction @old.py` | `{"type": "content", "content": …}` with the file's text; an object in YAML or JSON is sent as it is |
| `--stream-options.include-usage` | `{"include_usage": true}` |
| `--max-tokens null` | null |
| `--echo`, `--echo true`, `--echo=false`, `--echo null` | true, true, false, null |
| `--max-tokens 0x10` | 16 |

What is piped in is a request body when it is a map (JSON in braces; or YAML that holds nothing but parameters), else the
prompt; where it looks like a body but is none, a note on stderr says why. Flags win over its keys. A number may be
written with `0x`, `0o` and `0b`.
"""
FORMATS = """## Formats of results

| `--format` | `completions create` | other commands |
|---|---|---|
| `auto` | on a terminal the text as it is written, prompts dimmed; elsewhere as `json` | on a terminal a table or words; elsewhere as `json` |
| `text` | on a terminal as `auto`; elsewhere the texts alone, several under headings (`===== Completion 0 =====`) | the table or the words |
| `json` | indented, in colours on a terminal; of a stream a document for each chunk | indented |
| `jsonl` | JSON on one line; of a stream a line for each chunk | JSON on one line |
| `yaml` | YAML; of a stream `---` between the chunks | YAML |
| `pretty` | a box, a line for each value with its path (`choices.0.text`) | the same |
| `raw` | the JSON as the server sent it | as `jsonl` |

With `--transform` or `-r`, `auto` is `json` on a terminal too.
"""
VARIABLES = """## Environment

| variable | meaning |
|---|---|
| `OPENAI_BASE_URL`, `ONWARD_BASE_URL` | ask this server; ONWARD's wins. Set in a shell's profile it turns every call into one over HTTP: a terminal is told where each goes |
| `OPENAI_API_KEY` | key for the server; `ONWARD_API_KEY` goes before it, to the server of `ONWARD_BASE_URL` only |
| `OPENAI_ORG_ID`, `OPENAI_PROJECT_ID` | sent as OpenAI-Organization and OpenAI-Project |
| `OPENAI_CUSTOM_HEADERS` | more headers, `Name: value`, one a line |
| `NO_COLOR`, `FORCE_COLOR` | no colours; colours off a terminal too (`FORCE_COLOR=0`: none) |
| `ONWARD_…` | every [setting](settings.md), for models in this process too |
"""


def page() -> str:
    """The whole page, Markdown."""
    parts = [INTRODUCTION, *_commands(main, "onward"), VALUES, FORMATS, _exit_codes(), VARIABLES]
    return "\n".join(part.strip() + "\n" for part in parts)


def _commands(group: click.Group, path: str) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        else:
            yield _section(command, f"{path} {name}")


def _section(command: click.Command, path: str) -> str:
    context = click.Context(
        command,
        info_name=path,
        max_content_width=100,
        terminal_width=100,
        help_option_names=CONTEXT["help_option_names"],
    )
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## {path}", "", f"`{path} {usage}`", "", _prose(command.help or "")]
    if path == "onward serve":
        return "\n".join([*lines, "", "Its flags are the [settings](settings.md)."])
    if path.startswith("onward api "):
        return "\n".join([*lines, "", "Its flags are those of `onward completions create`."])
    if isinstance(command, RequestCommand):
        for title, options in command.sections(context).items():
            lines += ["", f"### {title}", *_table(options, context)]
        lines += ["", *_hidden(command)]
    else:
        lines += _table(command.get_params(context), context)
    return "\n".join(lines)


def _prose(help: str) -> str:
    return help.replace("\b\n", "").strip()


def _table(parameters: list[click.Parameter], context: click.Context) -> list[str]:
    records = [record for each in parameters if (record := each.get_help_record(context)) is not None]
    rows = [f"| `{_cell(flags)}` | {_cell(words)} |" for flags, words in records]
    return ["", "| flag | meaning |", "|---|---|", *rows] if rows else []


def _hidden(command: RequestCommand) -> Iterator[str]:
    """Other servers' spellings, which the help leaves out."""
    names = [f"`{option.opts[-1]}`" for option in command.params if isinstance(option, click.Option) and option.hidden]
    yield "Other servers' fields are flags too: " + ", ".join(names) + "."


def _exit_codes() -> str:
    rows = [f"| {code} | {_cell(words)} |" for code, words in DOCUMENTED]
    return "\n".join(["## Exit codes", "", "| code | meaning |", "|---|---|", *rows])


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("|", "\\|"))


if __name__ == "__main__":
    print(page(), end="")
