"""`onward score FILE`: log-probabilities of texts, token by token and in sum; `--compare A B`: of two models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onward.cli.batch.progress import Counts, shown_bar
from onward.cli.command import Argument, session_command
from onward.cli.completers import model_names
from onward.cli.interrupt import raise_on_interrupt, run
from onward.cli.output.errors import report_errors
from onward.cli.output.formats import emit, table
from onward.cli.output.terminal import dotted, pluralize, style_of, visible, warn
from onward.cli.session import Session
from onward.cli.source.open import open_source
from onward.errors import SetupError

if TYPE_CHECKING:
    from onward.cli.score.scoring import Totals
    from onward.cli.score.texts import InputFormat, InputText

HELP = """Score texts: how likely a model finds each of their tokens.

FILE is one text, or with --input lines one per line, or JSON lines (FILE.jsonl): strings, or objects with `text` and,
if it follows something that is not scored, `context`; `id` names it. Without FILE, a pipe.

Each result has the text's log-probability, bits per byte and perplexity, and its tokens with their bytes,
log-probabilities and ranks. The sum over all texts is printed at the end. With -o OUT.jsonl a later run continues where
one was interrupted.

\b
onward score story.txt
onward score --input lines sentences.txt -o scores.jsonl
onward score --compare storyteller storyteller@exact story.txt
"""
PRECISIONS = ("fast", "exact")


def score(
    session: Session,
    source: Path | None,
    output: Path | None,
    model: str | None,
    compare: tuple[str, str] | None,
    form: InputFormat,
    as_csv: bool,
    top: int,
    window: int | None,
    overlap: int,
) -> None:
    from onward.cli.score.texts import read_texts

    raise_on_interrupt()
    try:
        texts = read_texts(source, form)
    except SetupError as problem:
        if compare is None or source is not None:
            raise
        raise SetupError(f"{problem} FILE comes after two models: --compare A B FILE.") from None
    asked = _Asked(session, top, window, overlap)
    if compare is not None:
        if model or output or as_csv or top:
            raise click.UsageError("--compare prints one result for two models: leave out -m, -o, --csv and --top.")
        _compare(asked, texts, compare)
        return
    if as_csv and output is None and (flag := _formatting_flag(session)):
        raise click.UsageError(f"--csv and {flag} are two formats of the same results: leave out one of them.")
    is_csv = as_csv or (output is not None and output.suffix.lower() == ".csv")
    if top and (is_csv or (output is None and _is_for_people(session) and session.output.transform is None)):
        raise click.UsageError("--top is for JSON lines: pass --format jsonl or -o OUT.jsonl, or leave it out.")
    if output is None:
        _to_stdout(asked, texts, model, as_csv)
    elif is_csv:
        _to_csv(asked, texts, model, output)
    else:
        _to_file(asked, texts, model, output)


class _Asked:
    """The flags that hold for each run. Scores texts with one model, and shows the progress."""

    def __init__(self, session: Session, top: int, window: int | None, overlap: int) -> None:
        self.session = session
        self.top, self.window, self.overlap = top, window, overlap

    def run(
        self, texts: Sequence[InputText], model: str | None, write: Callable[[dict[str, Any]], None], totals: Totals
    ) -> None:
        """Score `texts`, pass each record to `write`, in order, and add it to `totals`, which has those of earlier
        runs."""
        from onward.cli.score.scoring import Options, score_texts

        name, settings = self._model(model)
        options = Options(model=name, top=self.top, window=self.window, overlap=self.overlap)
        source = open_source(self.session.connection, [] if name is None else [name], settings=settings)
        before = totals.num_texts
        counts = Counts(total=len(texts) + before, answered=before, finished_before=before, answered_before=before)

        def write_and_count(record: dict[str, Any]) -> None:
            write(record)
            totals.add(record)
            counts.answered += 1
            counts.tokens += record["num_tokens"]

        with shown_bar(counts):
            run(score_texts(source, texts, options, write_and_count))

    def _model(self, name: str | None) -> tuple[str | None, dict[str, str]]:
        """Return the model and the settings that `MODEL@exact` names; a server's models keep their names."""
        if self.session.connection.base_url is not None:
            if not name:
                raise click.UsageError('Required flag "model" not set: name one of the models of the server.')
            return name, {}
        own, mark, precision = (name or "").rpartition("@")
        return (own, {"precision": precision}) if mark and own and precision in PRECISIONS else (name, {})


def _is_for_people(session: Session) -> bool:
    """Return whether standard output has a table, unless it is CSV."""
    return session.output.format == "text" or (session.output.format == "auto" and sys.stdout.isatty())


def _formatting_flag(session: Session) -> str | None:
    """Return the flag that formats results, None without one."""
    output = session.output
    given = {"--format": output.format != "auto", "--transform": output.transform is not None, "-r": output.raw_strings}
    return next((flag for flag, is_given in given.items() if is_given), None)


def _to_stdout(asked: _Asked, texts: Sequence[InputText], model: str | None, as_csv: bool) -> None:
    """Write the records to standard output: a table for people, JSON lines for programs, or CSV; sums to stderr."""
    from onward.cli.score.scoring import Totals
    from onward.cli.score.writers import RecordStream

    totals, rows = Totals(), list[list[str]]()
    output = asked.session.output
    for_people = not as_csv and _is_for_people(asked.session)
    is_formatted = output.transform is not None or output.format not in ("auto", "text")
    write: Callable[[dict[str, Any]], None]
    if is_formatted:
        write = partial(emit, output, as_text=str)
    elif for_people:
        write = lambda record: rows.append(_row(record["id"], record))  # noqa: E731
    else:
        form = "csv" if as_csv else "jsonl"
        write = RecordStream(form, sys.stdout.buffer, "Standard output", len(texts)).write
    asked.run(texts, model, write, totals)
    if for_people:
        sums = [_row("all", totals.document())] if len(texts) > 1 else []
        click.echo(table(HEADINGS, [*rows, *sums]), color=True)
    else:
        _print_sums(totals)
    _warn_of_dropped(totals)


def _to_csv(asked: _Asked, texts: Sequence[InputText], model: str | None, output: Path) -> None:
    from onward.cli.score.scoring import Totals
    from onward.cli.score.writers import RecordStream, new_csv

    totals = Totals()
    with closing(new_csv(output)) as file:
        asked.run(texts, model, RecordStream("csv", file, str(output), len(texts)).write, totals)
    _emit_sums(asked.session, totals)


def _to_file(asked: _Asked, texts: Sequence[InputText], model: str | None, output: Path) -> None:
    """Append JSON lines to a file, after those of earlier runs."""
    from onward.cli.score.scoring import Totals
    from onward.cli.score.writers import Results, check_fingerprint, pending

    totals = Totals()
    with Results(output, len(texts)) as results:
        left = pending(texts, results)
        for text in texts:
            if text.id in results.records:
                totals.add(results.records[text.id])

        def write(record: dict[str, Any]) -> None:
            check_fingerprint(record, results)
            results.append(record)

        try:
            if left:
                with report_errors(asked.session):
                    asked.run(left, model, write, totals)
        except BaseException:
            if totals.num_texts < len(texts):
                done = f"{totals.num_texts:,} of {pluralize(len(texts), 'text')} scored"
                print(f"{done}; run the same command again to continue.", file=sys.stderr, flush=True)
            raise
    if not left:
        warn(f"Nothing left to do: {output} has the scores of all texts.")
    _emit_sums(asked.session, totals)


def _compare(asked: _Asked, texts: Sequence[InputText], names: tuple[str, str]) -> None:
    from onward.cli.score.compare import comparison
    from onward.cli.score.scoring import Totals

    records: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for name, own in zip(names, records, strict=True):
        asked.run(texts, name, own.append, Totals())
    document = comparison(names, *records)
    emit(asked.session.output, document, lambda: _shown_comparison(document))


HEADINGS = ("text", "tokens", "bytes", "log-probability", "bits per byte", "perplexity")


def _row(name: str, record: dict[str, Any]) -> list[str]:
    numbers = (record["logprob"], record["bits_per_byte"], record["perplexity"])
    return [
        name, f"{record['num_tokens']:,}", f"{record['num_bytes']:,}",
        *("–" if number is None else f"{number:,.4f}" for number in numbers),
    ]  # fmt: skip


def _emit_sums(session: Session, totals: Totals) -> None:
    document = totals.document()
    emit(session.output, document, lambda: dotted(_sums(document), sys.stdout))
    _warn_of_dropped(totals)


def _print_sums(totals: Totals) -> None:
    print(dotted(_sums(totals.document()), sys.stderr), file=sys.stderr, flush=True)


def _sums(document: dict[str, Any]) -> list[str]:
    parts = [
        pluralize(document["num_texts"], "text"),
        pluralize(document["num_tokens"], "token"),
        pluralize(document["num_bytes"], "byte"),
        f"log-probability {document['logprob']:,.4f}",
    ]
    if document["bits_per_byte"] is not None:
        parts.append(f"{document['bits_per_byte']:.4f} bits per byte")
    if document["perplexity"] is not None:
        parts.append(f"perplexity {document['perplexity']:,.4f}")
    return parts


def _warn_of_dropped(totals: Totals) -> None:
    if totals.dropped:
        few = ", ".join(totals.dropped[:5]) + (" …" if len(totals.dropped) > 5 else "")
        warn(
            f"The contexts of {pluralize(len(totals.dropped), 'text')} ({few}) do not fit: their first tokens were "
            "left out (dropped_context_tokens)."
        )


def _shown_comparison(document: dict[str, Any]) -> str:
    """Return a comparison as text."""
    style = style_of(sys.stdout)
    rows = [[each["name"], f"{each['num_tokens']:,}", f"{each['bits_per_byte']:.5f}"] for each in document["models"]]
    lines = [table(("model", "tokens", "bits per byte"), rows), ""]
    interval, difference = document["interval"], f"{document['difference']:+.5f} bits per byte"
    if interval is None:
        why = "at least five texts are needed to say how sure that is; --input lines makes one of each line"
        lines.append(f"Difference {difference} ({why})")
    else:
        low, high = interval
        lines.append(f"Difference {difference}, {document['confidence']:.0%} interval {low:+.5f} to {high:+.5f}")
    if document["tokens"] is None:
        lines.append(style.dim("The models have different tokens for these texts, so tokens are not compared."))
    elif document["tokens"]:
        differing = [
            [
                each["id"], str(each["index"]), _one_line(each["before"]) + "⟨" + _one_line(each["token"] or "") + "⟩",
                *(f"{number:.3f}" for number in each["logprobs"]),
            ]
            for each in document["tokens"]
        ]  # fmt: skip
        lines += ["", table(("text", "index", "token", "first", "second"), differing)]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


command = session_command(
    "score",
    score,
    HELP,
    [
        Argument(
            "source", "File of texts; -: standard input; nothing: a pipe.", required=False, metavar="[FILE]",
            type=click.Path(path_type=Path),
        ),
        click.Option(
            ["-o", "--output"], metavar="OUT", type=click.Path(dir_okay=False, path_type=Path),
            help="File for the results: JSON lines, which a later run continues, or CSV if it ends in .csv.",
        ),
        click.Option(
            ["--model", "-m"], metavar="NAME_OR_PATH", shell_complete=model_names,
            help="Model that scores; NAME@exact or NAME@fast sets its precision. For a server, one of its models.",
        ),
        click.Option(
            ["--compare"], nargs=2, metavar="A B", default=None, type=str,
            help="Compare two models, or two precisions of one, on the same texts.",
        ),
        click.Option(
            ["form", "--input"], type=click.Choice(("auto", "text", "lines", "jsonl")), default="auto",
            help="How FILE is read: one text, one per line, or JSON lines.  [default auto: by the name]",
        ),
        click.Option(["as_csv", "--csv"], is_flag=True, help="Write CSV, one row per token."),
        click.Option(
            ["--top"], type=click.IntRange(0, 20), default=0, metavar="N",
            help="Also return the N most likely tokens in each place (JSON lines only).",
        ),
        click.Option(
            ["--window"], type=click.IntRange(min=2), default=None, metavar="TOKENS",
            help="Score longer texts in windows of this many tokens.  [default the model's context]",
        ),
        click.Option(
            ["--overlap"], type=click.IntRange(min=1), default=1, metavar="TOKENS",
            help="Tokens of a window that the next one repeats as context; 1 as in lm-eval.  [default 1]",
        ),
    ],
    example="bits_per_byte",
)  # fmt: skip
