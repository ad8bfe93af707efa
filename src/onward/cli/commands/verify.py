"""`onward verify FILE…`: computes saved answers again, and reports which have the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onward.cli.command import Argument, concurrency_option, session_command
from onward.cli.completers import model_names
from onward.cli.database import log_flags, read_log
from onward.cli.interrupt import raise_on_interrupt
from onward.cli.output.errors import DIFFERS, NOT_KNOWN
from onward.cli.output.formats import emit, table
from onward.cli.session import Session
from onward.errors import SetupError

if TYPE_CHECKING:
    from onward.cli.verify.saved import Saved
    from onward.cli.verify.verdicts import Verification

MAX_ROWS = 100
HELP = """Compute saved answers again, and say of each whether it has the same bytes.

FILE may be the input and output files of a batch, the folder of --log-requests or a file of it, a story that the
playground exported, or pairs of a request and its answer (JSON, a stream's events, or what `curl -i` writes). Several
may be named, in any order. Without FILE, the log of --log-requests is read.

The model runs in this process, or on a server (--base-url). An answer is the same, or it is different, or that cannot
be known: other weights, precision or another version computed it (its system_fingerprint says so), another server did
that promises nothing, or it has no seed. The exit code is 0 if all are the same, 1 if one is different, 6 if none is
but some cannot be known.
"""


def verify(
    session: Session, files: tuple[Path, ...], model: str | None, concurrency: int, output: Path | None, **given: Any
) -> None:
    from onward.cli.verify.run import VerifyRun
    from onward.cli.verify.run import verify as verify_all
    from onward.cli.verify.verdicts import DIFFERENT, UNKNOWN, VerdictFile, Verification

    found = Verification()
    raise_on_interrupt()
    with ExitStack() as stack:
        kept = None if output is None else stack.enter_context(VerdictFile(output))
        try:
            verify_all(VerifyRun(session, _reader(files, given), concurrency, model, kept), found)
        except BaseException:
            if found.verdicts:
                _show(session, found)
            raise
    if not found.total:
        raise SetupError("There are no answers in " + (", ".join(map(str, files)) or "the log of requests") + ".")
    _show(session, found)
    if found.counts[DIFFERENT]:
        raise click.exceptions.Exit(DIFFERS)
    if found.counts[UNKNOWN]:
        raise click.exceptions.Exit(NOT_KNOWN)


def _reader(files: tuple[Path, ...], given: dict[str, Any]) -> Callable[[], Iterable[Saved]]:
    from onward.cli.verify.files import logged, read_files

    def read() -> Iterator[Saved]:
        yield from read_files(files) if files else map(logged, read_log(given))

    return read


def _show(session: Session, found: Verification) -> None:
    verdicts = [found.verdicts[place] for place in sorted(found.verdicts)]
    document = {
        "object": "list",
        "data": [each.as_document() for each in verdicts],
        "total": found.total,
        **found.counts,
    }
    emit(session.output, document, lambda: _words(found))


def _words(found: Verification) -> str:
    """Return a table of the answers that are not the same, and how many there are of each kind."""
    from onward.cli.verify.verdicts import SAME

    others = [found.verdicts[place] for place in sorted(found.verdicts) if found.verdicts[place].verdict != SAME]
    lines = []
    if others:
        lines = [table(["id", "verdict", ""], [[each.id, each.verdict, each.words] for each in others[:MAX_ROWS]])]
        lines += [f"… and {len(others) - MAX_ROWS:,} more (--format json has all)"] if len(others) > MAX_ROWS else []
    counts, done = found.counts, len(found.verdicts)
    summary = (
        f"{counts['same']:,} of {done:,} the same, {counts['different']:,} different, {counts['unknown']:,} unknown."
    )
    left = f" {found.total - done:,} were not computed." if done < found.total else ""
    return "\n".join([*lines, summary + left])


command = session_command(
    "verify",
    verify,
    HELP,
    [
        Argument(
            "files", "Files with requests and answers.", metavar="[FILE]...", nargs=-1,
            type=click.Path(exists=True, path_type=Path),
        ),
        click.Option(
            ["--model", "-m"], metavar="NAME_OR_PATH", shell_complete=model_names,
            help="Compute all answers with this model, whatever computed them.",
        ),
        click.Option(
            ["-o", "--output"], metavar="VERDICTS.jsonl", type=click.Path(dir_okay=False, path_type=Path),
            help="Append each verdict to this file; a later run computes only what it does not know.",
        ),
        concurrency_option(),
        *log_flags(),
    ],
    example="data.0.verdict",
)  # fmt: skip
