"""`onward batch run IN.jsonl -o OUT.jsonl`: runs a file of requests; a later run continues where it stopped. The other
commands have a server run it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onward.cli.batch.progress import Counts, print_unfinished
from onward.cli.command import CONTEXT, Argument, CommandGroup, concurrency_option, session_command
from onward.cli.completers import model_names
from onward.cli.interrupt import raise_on_interrupt
from onward.cli.interrupt import run as run_async
from onward.cli.output.errors import REQUEST, report_errors
from onward.cli.output.formats import emit, table
from onward.cli.output.terminal import pluralize, visible
from onward.cli.session import Session
from onward.errors import SetupError

if TYPE_CHECKING:
    from onward.cli.batch.remote import BatchServer

T = TypeVar("T")
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

    counts = Counts()
    try:
        with report_errors(session):
            raise_on_interrupt()
            run_batch(BatchRun(source, output, errors or _errors_beside(output), session, concurrency, model), counts)
    except click.exceptions.Exit as end:
        if counts.total and (end.exit_code != REQUEST or counts.unanswered):
            print_unfinished(counts)
        raise
    if counts.failed:
        raise click.exceptions.Exit(1)


def _errors_beside(output: Path) -> Path:
    return output.with_suffix(".errors" + (output.suffix or ".jsonl"))


SUBMIT_HELP = """Send IN to a server, which runs it on its own, and show the batch.

The file is in OpenAI's batch format, here with `method` and `url` in each line, and one model for all lines. The server
needs a database (`onward serve --data-dir`). --wait waits until the batch has ended; Ctrl-C does not cancel the batch.
"""
STATUS_HELP = "Show a batch of a server, or all of them. --wait waits until it has ended."
DOWNLOAD_HELP = """Write the results of a batch that has ended to OUT, and its other lines to the errors file.

The exit code is 1 if there are others.
"""


def _ask(session: Session, work: Callable[[BatchServer], Coroutine[Any, Any, T]]) -> T:
    """Return what `work` does with the server of a session, which is closed then. Raises SetupError without one."""
    from onward.cli.batch.remote import BatchServer

    async def asked() -> T:
        async with aclosing(BatchServer.of(session.connection)) as server:
            return await work(server)

    return run_async(asked())


def submit(session: Session, source: Path, wait: bool) -> None:
    async def work(server: BatchServer) -> dict[str, Any]:
        batch = await server.create(await server.upload(source))
        return await server.wait(batch["id"]) if wait else batch

    _show(session, _ask(session, work))


def status(session: Session, batch: str | None, wait: bool) -> None:
    if batch is not None:
        _show(session, _ask(session, lambda server: server.wait(batch) if wait else server.batch(batch)))
        return
    if wait:
        raise click.UsageError("--wait is for one batch: name it, or leave it out.")
    found = _ask(session, lambda server: server.batches())
    emit(session.output, {"object": "list", "data": found}, lambda: _table(found))


def cancel(session: Session, batch: str) -> None:
    _show(session, _ask(session, lambda server: server.cancel(batch)))


def download(session: Session, batch: str, output: Path, errors: Path | None) -> None:
    from onward.cli.batch.remote import FINAL

    errors = errors or _errors_beside(output)

    async def work(server: BatchServer) -> tuple[int, int]:
        found = await server.batch(batch)
        if found["status"] not in FINAL:
            raise SetupError(f"The batch is {found['status']}: wait for it with `onward batch status {batch} --wait`.")
        if found["status"] == "failed":
            raise SetupError(f"The batch failed: `onward batch status {batch}` says why.")
        numbers = []
        for name, path in (("output_file_id", output), ("error_file_id", errors)):
            numbers.append(await server.download(found[name], path) if found.get(name) else 0)
        return numbers[0], numbers[1]

    answered, failed = _ask(session, work)
    parts = [f"{pluralize(answered, 'line')} in {output}"] if answered else []
    parts += [f"{pluralize(failed, 'line')} in {errors}"] if failed else []
    click.echo(" · ".join(parts) or "The batch has no lines.", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _show(session: Session, batch: dict[str, Any]) -> None:
    emit(session.output, batch, lambda: _table([batch]) + _faults(batch))


def _table(batches: list[dict[str, Any]]) -> str:
    rows = []
    for each in batches:
        counts = each["request_counts"]
        rows.append([each["id"], each["status"], *(f"{counts[name]:,}" for name in ("total", "completed", "failed"))])
    return table(["id", "status", "lines", "completed", "failed"], rows)


def _faults(batch: dict[str, Any]) -> str:
    """Return a line for each of the first faults of a batch's file."""
    faults = (batch.get("errors") or {}).get("data") or []
    lines = [f"Line {each['line']}: {each['message']}" if each.get("line") else each["message"] for each in faults[:20]]
    more = [f"and {len(faults) - 20} more"] if len(faults) > 20 else []
    return visible("".join(f"\n{line}" for line in (*lines, *more)))


def _file(*names: str, **attributes: Any) -> click.Option:
    return click.Option(names, type=click.Path(dir_okay=False, path_type=Path), **attributes)


_SOURCE = Argument(
    "source", "File of requests, one JSON object per line.", metavar="IN.jsonl",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)  # fmt: skip
_BATCH = Argument("batch", "The id of a batch.", metavar="BATCH")
_WAIT = click.Option(["--wait"], is_flag=True, help="Wait until the batch has ended.")

command = CommandGroup(
    "batch",
    commands={
        "run": session_command(
            "run",
            run,
            HELP,
            [
                _SOURCE,
                _file("-o", "--output", required=True, metavar="OUT.jsonl", help="File for the results."),
                _file("--errors", metavar="PATH", help="File for rejected lines."),
                concurrency_option(),
                click.Option(
                    ["--model", "-m"], metavar="NAME_OR_PATH", shell_complete=model_names,
                    help="Use this model for all lines, whatever they name."
                ),
            ],
            has_results=False,
        ),
        "submit": session_command(
            "submit",
            submit,
            SUBMIT_HELP,
            [_SOURCE, _WAIT],
        ),
        "status": session_command(
            "status",
            status,
            STATUS_HELP,
            [Argument("batch", "The id of a batch.", metavar="[BATCH]", required=False), _WAIT],
        ),
        "cancel": session_command(
            "cancel", cancel, "Cancel a batch of a server. Lines that are finished keep their results.", [_BATCH]
        ),
        "download": session_command(
            "download",
            download,
            DOWNLOAD_HELP,
            [
                _BATCH,
                _file("-o", "--output", required=True, metavar="OUT.jsonl", help="New file for the results."),
                _file("--errors", metavar="PATH", help="New file for other lines."),
            ],
            has_results=False,
        ),
    },
    help="Run a file of requests, here or on a server.",
    context_settings=CONTEXT,
)  # fmt: skip
