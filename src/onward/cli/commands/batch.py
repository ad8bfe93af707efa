"""`onward batch run IN.jsonl -o OUT.jsonl`: runs a file of requests; a later run continues where it stopped."""

from __future__ import annotations

from pathlib import Path

import click

from onward.cli.batch.progress import Counts, print_unfinished
from onward.cli.command import CONTEXT, Argument, CommandGroup, session_command
from onward.cli.completers import model_names
from onward.cli.interrupt import raise_on_interrupt
from onward.cli.output.errors import REQUEST, report_errors
from onward.cli.session import Session

DEFAULT_CONCURRENCY = 32
HELP = """Run every request in IN, a file in OpenAI's batch format with /v1/completions bodies.

Results go to OUT and rejected lines to OUT.errors.jsonl, in order of completion. After Ctrl-C, a crash or a kill, run
the same command again: lines in either file are skipped, all others run. Delete the errors file to retry its lines.

If the server is busy or temporarily down (HTTP 429, 502, 503, or no connection after it has completed lines of this
run), the batch waits until no line has completed for ten minutes. A line that fails three times (408, other 5xx) is in
neither file; the next run retries it.

IN may be a pipe. A line that has changed since it was completed ends the command before anything runs.

A line that is not a valid request (invalid JSON, another URL, a duplicate custom_id) or names an unknown model is
rejected without affecting the others. If it was never sent, its `response` is null, its `error` contains the line
number, and its custom_id is null if it could not be read.
"""


def run(session: Session, source: Path, output: Path, errors: Path | None, concurrency: int, model: str | None) -> None:
    from onward.cli.batch.run import BatchRun, run_batch

    errors = errors or output.with_suffix(".errors" + (output.suffix or ".jsonl"))
    counts = Counts()
    try:
        with report_errors(session):
            raise_on_interrupt()
            run_batch(BatchRun(source, output, errors, session, concurrency, model), counts)
    except click.exceptions.Exit as end:
        if counts.total and (end.exit_code != REQUEST or counts.unanswered):
            print_unfinished(counts)
        raise
    if counts.failed:
        raise click.exceptions.Exit(1)


command = CommandGroup(
    "batch",
    commands={
        "run": session_command(
            "run",
            run,
            HELP,
            [
                Argument(
                    "source", "File of requests, one JSON object per line.", metavar="IN.jsonl",
                    type=click.Path(exists=True, dir_okay=False, path_type=Path),
                ),
                click.Option(
                    ["-o", "--output"], required=True, metavar="OUT.jsonl", help="File for the results.",
                    type=click.Path(dir_okay=False, path_type=Path),
                ),
                click.Option(
                    ["--errors"], metavar="PATH", help="File for rejected lines.",
                    type=click.Path(dir_okay=False, path_type=Path),
                ),
                click.Option(
                    ["--concurrency"], type=click.IntRange(min=1), default=DEFAULT_CONCURRENCY, metavar="N",
                    help=f"Maximum number of concurrent requests.  [default {DEFAULT_CONCURRENCY}]",
                ),
                click.Option(
                    ["--model", "-m"], metavar="NAME_OR_PATH", shell_complete=model_names,
                    help="Use this model for all lines, whatever they name."
                ),
            ],
            has_results=False,
        )
    },
    help="Run a file of requests.",
    context_settings=CONTEXT,
)  # fmt: skip
