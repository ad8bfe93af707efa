"""`onward convert`: a GGUF or safetensors model as an OpenVINO IR folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onward.cli.command import Argument, session_command
from onward.cli.completers import model_names
from onward.cli.output.formats import bytes_in_words, emit
from onward.cli.output.progress import loading
from onward.cli.session import Session

HELP = (
    "Write a GGUF or safetensors model as an OpenVINO IR folder with its tokenizer, which Onward and OpenVINO's "
    "other programs load. SOURCE+PATH merges a LoRA adapter. `onward serve` needs no conversion: it keeps its own in "
    "the cache."
)


def convert_model(session: Session, source: str, folder: str, precision: Any, weights: Any) -> None:
    from onward.models.convert import convert
    from onward.models.resolve import resolve
    from onward.settings import resolve as resolve_settings

    settings = resolve_settings(limits_found_file=True).settings

    def progress(words: str) -> None:
        click.echo(words, err=True)

    found = resolve(source, allow_download=not settings.offline, progress=progress, cache_dir=settings.cache_dir)
    target = Path(folder).expanduser()
    with loading(progress) as said:
        convert(found, target, precision=precision, weights=weights, cache_dir=settings.cache_dir, progress=said)
    num_bytes = sum(each.stat().st_size for each in target.iterdir())
    emit(
        session.output,
        {"id": target.name, "object": "model", "bytes": num_bytes, "path": str(target)},
        lambda: f"{target} is ready: {bytes_in_words(num_bytes)}\nTry it: onward serve --model {target}",
    )


command = session_command(
    "convert",
    convert_model,
    HELP,
    [
        Argument("source", "As for `onward serve --model`.", metavar="SOURCE", shell_complete=model_names),
        Argument("folder", "A folder that does not exist.", metavar="FOLDER"),
        click.Option(
            ["--precision"],
            type=click.Choice(["fast", "exact"]),
            default="fast",
            help="exact: weights as 32-bit numbers, 16-bit ones as they are. Default: fast.",
        ),
        click.Option(
            ["--weights"],
            type=click.Choice(["auto", "exact", "int8", "int4"]),
            default="auto",
            help="As for `onward serve`. Default: auto.",
        ),
    ],
    can_connect=False,
    example="path",
)
