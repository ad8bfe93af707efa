"""Errors as sentences: what happened, what to do next, and one exit code per kind (DOCUMENTED)."""

from __future__ import annotations

import errno
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from onward.cli.hints import known_flags, runnable
from onward.cli.interrupt import EXIT_CODE as INTERRUPTED
from onward.cli.output.terminal import style_of, visible
from onward.cli.session import Session
from onward.cli.source.base import ConnectionFailed, RemoteError
from onward.errors import ApiError, HubUnreachable, ModelNameError, SetupError
from onward.network import without_secrets
from onward.stdio import silence_stdout

NO_MEMORY = (
    "There is not enough memory. Close other programs, use a smaller model, or raise the limit of this process (ulimit "
    "-v, or that of its container or service)."
)
SETUP, CONNECTION, REQUEST, SERVER = 1, 3, 4, 5
DIFFERS, NOT_KNOWN = 1, 6
"""Of `verify`."""
DOCUMENTED = (
    (0, "success; also when the reader of a pipe has gone away"),
    (
        SETUP,
        "a setup problem, such as a broken model folder; results that cannot be written, to a full disk or a closed "
        "standard output; `batch run`: some lines failed; `verify`: an answer differs",
    ),
    (2, "usage error: an unknown flag or command, or an invalid value"),
    (CONNECTION, "no connection, or the connection was lost"),
    (REQUEST, "the request was rejected: HTTP 4xx, an unknown model"),
    (SERVER, "the server failed: HTTP 5xx"),
    (NOT_KNOWN, "`verify`: no answer differs, but some could not be checked"),
    (INTERRUPTED, "Ctrl-C; running requests are cancelled"),
)


@contextmanager
def report_output_errors() -> Iterator[None]:
    """Convert a failure to write output to a message on stderr and an exit code; a reader that has gone is success.

    Raises click's Exit.
    """
    try:
        yield
    except BrokenPipeError:
        silence_stdout()
        raise click.exceptions.Exit(0) from None
    except UnicodeEncodeError as problem:  # a file name; what is written is escaped
        encoding = "UTF-8" if problem.encoding == "utf-8" else problem.encoding
        _print_error(f"{problem.object!r} cannot be encoded as {encoding}: rename it, or set LANG=C.UTF-8.")
        raise click.exceptions.Exit(SETUP) from None
    except MemoryError:
        raise _no_memory() from None
    except OSError as problem:  # a full disk, a file without permission
        if lacks_memory(problem):
            raise _no_memory() from None
        silence_stdout()
        words = f"{problem.filename or 'The output'}: {problem.strerror or problem}."
        _print_error("Standard output is closed." if problem.errno == errno.EBADF else words)
        raise click.exceptions.Exit(SETUP) from None


def lacks_memory(problem: BaseException | None) -> bool:
    """Return whether this error, or one that it was raised from, is how Python or a library reports that there is no
    memory: for objects, for a thread, to map a file, or for the exception itself (CPython's SystemError)."""
    words = (
        "can't start new thread",
        "cannot allocate memory",
        "failed to map segment",
        "the memory does not suffice",
        "error return without exception set",
        "returned null without setting an exception",
    )
    while problem is not None:
        is_said = any(each in str(problem).lower() for each in words)
        if is_said or isinstance(problem, MemoryError) or getattr(problem, "errno", None) == errno.ENOMEM:
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _no_memory() -> click.exceptions.Exit:
    _print_error(NO_MEMORY)
    return click.exceptions.Exit(SETUP)


@contextmanager
def report_errors(session: Session) -> Iterator[None]:
    """Convert the errors of a command to a message on stderr and an exit code. Raises click's Exit."""
    try:
        with report_output_errors():
            yield
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except HubUnreachable as problem:
        _print_error(known_flags(str(problem)))
        raise click.exceptions.Exit(CONNECTION) from None
    except ModelNameError as problem:
        _print_error(known_flags(str(problem)))
        raise click.exceptions.Exit(REQUEST) from None
    except SetupError as problem:
        _print_error(known_flags(str(problem)))
        raise click.exceptions.Exit(SETUP) from None
    except ConnectionFailed as problem:
        _print_error(str(problem), _connection_advice(session) if problem.is_refused else "")
        raise click.exceptions.Exit(CONNECTION) from None
    except (ApiError, RemoteError) as problem:
        if problem.status >= 500 and lacks_memory(problem):  # of this process
            raise _no_memory() from None
        _print_api_error(problem, session)
        raise click.exceptions.Exit(REQUEST if problem.status < 500 else SERVER) from None


def error_object(problem: ApiError | RemoteError) -> dict[str, Any]:
    """Return the inner error object as the server sent it, or as the API of this process would send it."""
    body = getattr(problem, "body", None)
    if isinstance(body, dict):
        return body
    return {"message": problem.message, "type": problem.type, "param": problem.param, "code": problem.code}


def _print_api_error(problem: ApiError | RemoteError, session: Session) -> None:
    output = session.output
    if output.format_error != "auto" or output.transform_error is not None:
        from onward.cli.output.formats import rendered

        output = replace(output, format=output.format_error, transform=output.transform_error)
        print(rendered(error_object(problem), output, sys.stderr), file=sys.stderr, flush=True)
        return
    title = problem.message
    marks = [f"{name} {value}" for name in ("param", "code") if (value := getattr(problem, name))]
    has_status = getattr(problem, "has_status", session.connection.base_url is not None)
    marks += [f"HTTP {problem.status}"] if has_status else []
    if request_id := getattr(problem, "request_id", None):
        marks.append(f"request {request_id}")
    _print_error(f"{title} ({', '.join(marks)})" if marks else title, _advice(problem, session))


def _print_error(words: str, advice: str = "") -> None:
    style = style_of(sys.stderr)
    print(f"{style.red('onward:')} {visible(runnable(words))}", file=sys.stderr)
    if advice:
        print(style.dim(visible(runnable(advice))), file=sys.stderr)
    sys.stderr.flush()


def list_models_command(session: Session) -> str:
    """Return the command that lists the models of the session's server, or of this machine."""
    base_url = session.connection.base_url
    return "onward models list" + (f" --base-url {shlex.quote(without_secrets(base_url))}" if base_url else "")


def _connection_advice(session: Session) -> str:
    origin = session.connection.origin
    leave = "leave out --base-url" if origin == "--base-url" else f"unset {origin}"
    return f"Start a server with `onward serve`, or {leave} to run the model in this process."


def _advice(problem: ApiError | RemoteError, session: Session) -> str:
    near: str = getattr(problem, "suggestion", "")
    match problem.status:
        case 401 | 403:
            return "Set the API key with --api-key or OPENAI_API_KEY."
        case 404 if problem.code == "model_not_found" or problem.param == "model":
            return f"{near} `{list_models_command(session)}` shows the available models.".strip()
        case 404:
            return "Check the end of the base URL: most servers expect /v1."
        case 429 if problem.code != "insufficient_quota":
            return "Wait a moment, or send fewer requests at once."
        case 502 if not getattr(problem, "has_status", True):
            return "Check the base URL: most servers expect /v1 at its end."
        case status if 300 <= status < 400:
            return "The server has moved: set --base-url to its new address."
        case status if status >= 500 and session.connection.base_url:
            return "See the server's log for details. The request was retried where a retry could help."
        case status if status >= 500 and problem.__cause__ is not None:
            return str(problem.__cause__)
    return "`onward completions create --help` lists every flag." if problem.param else ""
