"""`onward batch run IN.jsonl -o OUT.jsonl`: a file of requests, answered; what is answered stays answered."""

from __future__ import annotations

from pathlib import Path

import click

from onward.cli.argument import Argument
from onward.cli.command import CONTEXT, Group, session_command
from onward.cli.output.errors import REQUEST, report_errors
from onward.cli.session import Session

DEFAULT_CONCURRENCY = 32
HELP = """Answer every line of IN, a file in OpenAI's batch format with /v1/completions bodies.

Answers go to OUT, refused lines to its neighbour OUT.errors.jsonl, both in the order in which they end. Run it
again after Ctrl-C, a crash or a kill: lines that are in either file are left alone, all others are answered.
Delete the errors file to have its lines tried again.

A server that is busy or away for a while (HTTP 429, 502, 503) is waited for, until it has answered no line for ten
minutes. A line that it fails at three times (408, other 5xx) is in neither file: it is left for the next run.

A line that is no request (no JSON, another URL, a custom_id that was used before) or names an unknown model stops
none of the others: it is a refused line too. Where it was never sent, its `response` is null, its `error` tells the
line's number, and its custom_id is null where none could be read.
"""


def run(session: Session, source: Path, output: Path, errors: Path | None, concurrency: int, model: str | None) -> None:
    from onward.cli.batch.progress import unfinished
    from onward.cli.batch.run import Batch, Done, run_batch

    errors = errors or output.with_suffix(".errors" + (output.suffix or ".jsonl"))
    done = Done()
    try:
        with report_errors(session):
            run_batch(Batch(source, output, errors, session, concurrency, model), done)
    except click.exceptions.Exit as end:
        if done.total and (end.exit_code != REQUEST or done.unanswered):
            unfinished(done)
        raise
    if done.failed:
        raise click.exceptions.Exit(1)


command = Group(
    "batch",
    commands={
        "run": session_command(
            "run",
            run,
            HELP,
            [
                Argument(
                    "source", "File of the requests, a JSON object a line.", metavar="IN.jsonl",
                    type=click.Path(exists=True, dir_okay=False, path_type=Path),
                ),
                click.Option(
                    ["-o", "--output"], required=True, metavar="OUT.jsonl", help="File of the answers.",
                    type=click.Path(dir_okay=False, path_type=Path),
                ),
                click.Option(
                    ["--errors"], metavar="PATH", help="File of the lines that were refused.",
                    type=click.Path(dir_okay=False, path_type=Path),
                ),
                click.Option(
                    ["--concurrency"], type=click.IntRange(min=1), default=DEFAULT_CONCURRENCY, metavar="N",
                    help=f"Most requests under way at once.  [default {DEFAULT_CONCURRENCY}]",
                ),
                click.Option(
                    ["--model", "-m"], metavar="NAME_OR_PATH", help="Ask this model, whatever each line names."
                ),
            ],
            shows=False,
        )
    },
    help="Answer a file of requests.",
    context_settings=CONTEXT,
)  # fmt: skip
