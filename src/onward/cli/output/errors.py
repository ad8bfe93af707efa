"""Errors for people: what happened, what to do next, and an exit code for each kind.

0 done · 1 a start that cannot work · 2 usage · 3 no connection, or one that broke · 4 the request is at fault
(HTTP 4xx) · 5 the server is at fault (HTTP 5xx) · 130 Ctrl-C
"""

from __future__ import annotations

import errno
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from onward.cli.output.terminal import style_of
from onward.errors import ApiError, HubUnreachable, ModelNameError, SetupError
from onward.stdio import silence_stdout

if TYPE_CHECKING:
    from onward.cli.session import Session
    from onward.cli.source.errors import RemoteError

SETUP, CONNECTION, REQUEST, SERVER, INTERRUPTED = 1, 3, 4, 5, 130
DOCUMENTED = (
    (0, "done; also when the reader of a pipe went away"),
    (
        SETUP,
        "a start that cannot work, such as a broken model folder; results that cannot be written, to a full disk or "
        "to a closed standard output; `batch run`: some lines failed",
    ),
    (2, "usage: a wrong flag, command or value"),
    (CONNECTION, "no connection, or one that broke"),
    (REQUEST, "the request is at fault: HTTP 4xx, an unknown model"),
    (SERVER, "the server is at fault: HTTP 5xx"),
    (INTERRUPTED, "Ctrl-C; what was running is cancelled"),
)


@contextmanager
def report_output_errors() -> Iterator[None]:
    """Turns an output that cannot be written into words on stderr and an exit code. A reader who left is success."""
    try:
        yield
    except BrokenPipeError:
        silence_stdout()
        raise click.exceptions.Exit(0) from None
    except OSError as problem:  # a full disk, a file without permission
        silence_stdout()
        words = f"{problem.filename or 'The output'}: {problem.strerror or problem}."
        _say("Standard output is closed." if problem.errno == errno.EBADF else words)
        raise click.exceptions.Exit(SETUP) from None


@contextmanager
def report_errors(session: Session) -> Iterator[None]:
    """Turns the errors of a request into words on stderr and an exit code."""
    from onward.cli.source.errors import ConnectionFailed, RemoteError

    try:
        with report_output_errors():
            yield
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except HubUnreachable as problem:
        _say(str(problem))
        raise click.exceptions.Exit(CONNECTION) from None
    except ModelNameError as problem:
        _say(str(problem))
        raise click.exceptions.Exit(REQUEST) from None
    except SetupError as problem:
        _say(str(problem))
        raise click.exceptions.Exit(SETUP) from None
    except ConnectionFailed as problem:
        _say(str(problem), _connection_advice(session))
        raise click.exceptions.Exit(CONNECTION) from None
    except (ApiError, RemoteError) as problem:
        _say_api_error(problem, session)
        raise click.exceptions.Exit(REQUEST if problem.status < 500 else SERVER) from None


def error_object(problem: ApiError | RemoteError) -> dict[str, Any]:
    """The inner error object: as the server sent it, or as this process's API would."""
    body = getattr(problem, "body", None)
    if isinstance(body, dict):
        return body
    return {"message": problem.message, "type": problem.type, "param": problem.param, "code": problem.code}


def _say_api_error(problem: ApiError | RemoteError, session: Session) -> None:
    output = session.output
    if output.format_error != "auto" or output.transform_error is not None:
        from onward.cli.output.formats import render

        shown = render(
            error_object(problem),
            format=output.format_error,
            transform=output.transform_error,
            raw_strings=output.raw_strings,
            terminal=sys.stderr.isatty(),
            colour=style_of(sys.stderr).on,
        )
        print(shown, file=sys.stderr, flush=True)
        return
    title = problem.message
    marks = [f"{name} {value}" for name in ("param", "code") if (value := getattr(problem, name))]
    marks += [f"HTTP {problem.status}"] if session.connection.base_url else []
    if request_id := getattr(problem, "request_id", None):
        marks.append(f"request {request_id}")
    _say(f"{title} ({', '.join(marks)})" if marks else title, _advice(problem, session))


def _say(words: str, advice: str = "") -> None:
    style = style_of(sys.stderr)
    print(f"{style.red('onward:')} {words}", file=sys.stderr)
    if advice:
        print(style.dim(advice), file=sys.stderr)
    sys.stderr.flush()


def models_list(session: Session) -> str:
    """The command that lists the models of who is asked."""
    base_url = session.connection.base_url
    return "onward models list" + (f" --base-url {shlex.quote(base_url)}" if base_url else "")


def _connection_advice(session: Session) -> str:
    origin = session.connection.origin
    leave = "leave out --base-url" if origin == "--base-url" else f"unset {origin}"
    return f"Start a server with `onward serve`, or {leave} to run the model in this process."


def _advice(problem: ApiError | RemoteError, session: Session) -> str:
    near: str = getattr(problem, "suggestion", "")
    match problem.status:
        case 401 | 403:
            return "Give a key with --api-key or OPENAI_API_KEY."
        case 404 if problem.code == "model_not_found" or problem.param == "model":
            return f"{near}`{models_list(session)}` shows what can be asked for.".strip()
        case 404:
            return "Does the address end as the server wants it, in /v1 for most?"
        case 429:
            return "Wait a little, or send less at a time."
        case status if 300 <= status < 400:
            return "The address has moved: give --base-url as the server spells it."
        case status if status >= 500 and session.connection.base_url:
            return "The server's log tells more. It was asked again where that could help."
    return "`onward completions create --help` lists every flag." if problem.param else ""
