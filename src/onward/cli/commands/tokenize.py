"""`onward tokenize`: the tokens of a text, as ids, text and bytes."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import sys
from contextlib import aclosing
from dataclasses import replace
from itertools import cycle
from typing import Any

import click

from onward.cli.command import Argument, session_command, text_of
from onward.cli.completers import model_names
from onward.cli.output.formats import emit
from onward.cli.output.terminal import pluralize, style_of, visible
from onward.cli.request.contents import STDIN_NAMES, Stdin, embed
from onward.cli.session import Session, announce
from onward.text.decoding import render_token

_BACKGROUNDS = ("48;5;24", "48;5;58", "48;5;53", "48;5;22", "48;5;94")
_AS_BYTES = "bytes:"
_INCOMPLETE = "·"
"""Shown for a token that does not complete a character."""


def tokenize(session: Session, text: str | None, model: str | None, special: bool) -> None:
    stdin = Stdin()
    if text is None or text in STDIN_NAMES:
        content = stdin.take("TEXT") if text is not None else stdin.offered(wait=True)
    else:
        content = text_of(embed(text, stdin, "TEXT"))
    if content is None:
        raise click.UsageError("Pass the text as an argument or through a pipe.")
    if session.connection.base_url is not None:
        found = asyncio.run(_remote(session, model, content, special))
    else:
        found = _local(model, content, special)
    emit(session.output, found, lambda: _shown(found))


def _local(model: str | None, text: str, special: bool) -> dict[str, Any]:
    """Tokenize in this process, without loading the weights. Raises SetupError."""
    from onward.api.openai.errors import openai_words
    from onward.compose import load_tokenizer
    from onward.settings import resolve

    resolved = resolve(limits_found_file=True)
    announce(resolved)
    may_download = resolved.may_download(*([] if model is None else [model]))
    settings = replace(resolved.settings, offline=resolved.settings.offline or not may_download)
    tokenizer = load_tokenizer(model, settings)
    with openai_words():
        ids = tokenizer.encode(text, add_special_tokens=special)
    return _answer(ids, [tokenizer.token_bytes(token) for token in ids])


def _answer(ids: list[int], token_bytes: list[bytes]) -> dict[str, Any]:
    """Return the result document: `bytes` in hexadecimal; `pieces` as in logprobs, where an incomplete character is
    written `bytes:\\xe2`."""
    return {
        "tokens": ids,
        "count": len(ids),
        "pieces": [render_token(each) for each in token_bytes],
        "bytes": [each.hex() for each in token_bytes],
    }


async def _remote(session: Session, model: str | None, text: str, special: bool) -> dict[str, Any]:
    """Return the result of the server's /tokenize, which is next to /v1 and does not report bytes."""
    from onward.cli.source.http import HttpSource, Tokenized

    fields = {"model": model, "prompt": text, "add_special_tokens": special, "return_token_strs": True}
    async with aclosing(HttpSource(session.connection)) as source:
        answer = await source.request("POST", "/tokenize", Tokenized, fields, is_at_root=True)
    tokens, pieces = answer["tokens"], answer.get("token_strs") or []
    if len(pieces) != len(tokens):  # a server that does not report them
        pieces = [""] * len(tokens)
    return {"tokens": tokens, "count": len(tokens), "pieces": pieces}


def _shown(found: dict[str, Any]) -> str:
    """Return the text with its tokens on alternating backgrounds, then one line per token."""
    style = style_of(sys.stdout)
    spelled = _spelled([_raw(text) for text in found["pieces"]])
    coloured = "".join(style(visible(text), code) for text, code in zip(spelled, cycle(_BACKGROUNDS), strict=False))
    lines = [coloured] if style.on else []
    raw = found.get("bytes") or [""] * found["count"]
    for token, rendered, hexadecimal in zip(found["tokens"], found["pieces"], raw, strict=True):
        spaced = " ".join(hexadecimal[index : index + 2] for index in range(0, len(hexadecimal), 2))
        lines.append(f"{token:>8}  {_named(rendered):<20} {style.dim(spaced)}".rstrip())
    return "\n".join([*lines, style.dim(pluralize(found["count"], "token"))])


def _spelled(token_bytes: list[bytes]) -> list[str]:
    """Return one text per token. A character split over several tokens is shown at the last one, `·` at the others."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    last = len(token_bytes) - 1
    return [decoder.decode(each, final=index == last) or _INCOMPLETE for index, each in enumerate(token_bytes)]


def _raw(rendered: str) -> bytes:
    """Return the bytes that `render_token` rendered."""
    if not rendered.startswith(_AS_BYTES):
        return rendered.encode()
    escaped = re.split(r"\\x([0-9a-f]{2})", rendered.removeprefix(_AS_BYTES))
    return b"".join(bytes.fromhex(part) if index % 2 else part.encode() for index, part in enumerate(escaped))


def _named(rendered: str) -> str:
    """Return a token for the table: text as a JSON string; an incomplete character as bytes, without quotes."""
    return visible(rendered if rendered.startswith(_AS_BYTES) else json.dumps(rendered, ensure_ascii=False))


command = session_command(
    "tokenize",
    tokenize,
    "Show the tokens of TEXT, or of standard input: ids, text and bytes.",
    [
        Argument(
            "text",
            "The text; @FILE reads a file, - or @- standard input; write \\@ for a text that begins with @.",
            required=False,
        ),
        click.Option(
            ["--model", "-m"],
            metavar="NAME_OR_PATH",
            shell_complete=model_names,
            help="Model whose tokenizer is used; its weights are not loaded.",
        ),
        click.Option(
            ["special", "--add-special-tokens/--no-add-special-tokens"],
            default=True,
            help="Add the model's start token, if it has one.",
        ),
    ],
    example="count",
)
