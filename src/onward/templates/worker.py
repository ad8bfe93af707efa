"""`python -m onward.templates.worker`: renders one chat template and ends.

The prompt is that of transformers' `apply_chat_template` (4.57, utils/chat_template_utils.py): the same environment,
filters and functions. The template runs in jinja2's sandbox, with limits on processor time, memory and the length of
its output, in a process that inherited no secret and can no longer open files or connections.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

import msgspec
from jinja2 import TemplateError as LibraryError
from jinja2 import TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from onward.ipc.frames import FrameReader, write_frame
from onward.ipc.worker_end import (
    ignore_server_signals,
    limit_memory,
    limited_processor_time,
    open_nothing,
    prefer_as_oom_victim,
    take_connection,
)
from onward.templates.render import TOO_LARGE, Message, Render, Rendered

MAX_PROCESSOR_SECONDS = 2.0
MAX_EXTRA_MEMORY = 256 << 20
"""Bytes of addresses, not counting those that the process has before it sees a template."""
MAX_PROMPT_CHARACTERS = 4_000_000
MAX_REASON_CHARACTERS = 300


class _Refused(Exception):
    """The template itself refuses the conversation, by its function `raise_exception`."""


class _Generation(Extension):
    """Renders what is in `{% generation %} … {% endgeneration %}`, with which training marks what the model writes."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def rendered(request: Render) -> Rendered:
    """Return the prompt, or why there is none."""
    try:
        return Rendered(_prompt(request).encode("utf-8", "replace").decode())
    except _Refused as error:
        return _problem("the model's chat template refuses the conversation", error)
    except TemplateSyntaxError as error:
        return _problem(f"the model's chat template has an error on line {error.lineno}", error)
    except SecurityError as error:
        return _problem("the model's chat template does what no template may", error)
    except (MemoryError, RecursionError):
        return Rendered("", TOO_LARGE)
    except (LibraryError, Exception) as error:
        return _problem("the model's chat template fails", error)


def _prompt(request: Render) -> str:
    template = _environment().from_string(request.template)
    parts = template.generate(
        messages=[{"role": each.role, "content": each.content} for each in request.messages],
        tools=None,
        documents=None,
        add_generation_prompt=request.add_generation_prompt,
        bos_token=request.bos_token,
        eos_token=request.eos_token,
    )
    found, length = [], 0
    for part in parts:
        found.append(part)
        length += len(part)
        if length > MAX_PROMPT_CHARACTERS:
            raise LibraryError(f"its prompt is longer than {MAX_PROMPT_CHARACTERS} characters")
    return "".join(found)


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = _now
    return made


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> NoReturn:
    raise _Refused(str(message))


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _problem(what: str, error: Exception) -> Rendered:
    said = " ".join(str(error).split())[:MAX_REASON_CHARACTERS] or type(error).__name__
    return Rendered("", f"{what}: {said}")


def _load_everything() -> None:
    """Import all modules that rendering needs, and those that its errors need, while files can still be opened."""
    for template in ("{{ strftime_now('%c') }}{{ messages | tojson }}{{ raise_exception('') }}", "{{ 1 / 0 }}", "{%"):
        rendered(Render(template, [Message("user", "")], "", "", True))


def main() -> None:
    """Answer the one request of the connection that is standard input."""
    ignore_server_signals()
    prefer_as_oom_victim()
    down, up = take_connection()
    _load_everything()
    limit_memory(MAX_EXTRA_MEMORY)
    open_nothing()
    payload = next(iter(FrameReader(down)), None)
    if payload is None:
        return
    with limited_processor_time(MAX_PROCESSOR_SECONDS):
        answer = rendered(msgspec.msgpack.decode(payload, type=Render))
        write_frame(up, msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main()
