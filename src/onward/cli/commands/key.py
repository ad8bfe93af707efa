"""`onward key`: keys for the file of --api-key-file, and keys with limits in a database."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from onward import values
from onward.cli.command import CONTEXT, Argument, CommandGroup, session_command
from onward.cli.database import NAMES, database_flags, open_named, resolved_settings
from onward.cli.key_flags import ANY, COSTS, COUNTS, SIZES, Duration, limit_flags, limit_names, limits_of, rights_of
from onward.cli.output.formats import amount, emit, table, utc_time
from onward.cli.session import Session
from onward.cli.settings_command import setting, setting_flag
from onward.errors import SetupError
from onward.service.grant import StoredKey, digest_of, new_secret
from onward.service.limits import NO_LIMITS

_FORGOTTEN = {
    "log_requests": "Log of requests that those of the key are removed from, as the server's setting names it.",
    "prefix_cache_dir": "Prefix cache that is removed, as the server's setting names it.",
}
"""The settings that name other places where data about keys is kept."""


def new(name: str | None, file: Path | None, admin: bool, **given: Any) -> None:
    """Print a new key once. With a database, its digest and limits are stored there; otherwise the line of a key file
    that accepts it comes on standard error."""
    from onward.compose.team import has_database

    settings = resolved_settings(given)
    limits, changes = limits_of(given), rights_of(given)
    if not has_database(settings):
        if limits != NO_LIMITS or changes or admin:
            raise SetupError(
                "Limits, models, expiry, priority and --admin need a database: pass --data-dir or --database."
            )
        key = new_secret()
        _show(key, file)
        click.echo(f"# The line of --api-key-file that accepts this key:\n{_line(key, name)}", err=True)
        return
    from onward.service.keys import create_key

    if name is None:
        raise click.UsageError("A key of a database needs a name: `onward key new NAME`.")
    secret = new_secret(is_admin=admin)
    with open_named(given, creates=True) as store, store.begin() as connection:
        create_key(connection, secret, name, limits, store.clock(), is_admin=admin, **changes)
        _show(secret, file)  # within the transaction: a key that could not be shown is not stored


def change(name: str, **given: Any) -> None:
    """Change limits, models, expiry, priority of a key."""
    from onward.service.keys import change_key

    changes = {each: None if given[each] == -1 else given[each] for each in limit_names() if given[each] is not None}
    changes |= rights_of(given)
    if not changes:
        raise click.UsageError("Nothing to change: name a limit, --allow-model, --priority or --expires.")
    with open_named(given) as store, store.begin() as connection:
        change_key(connection, name, changes, store.clock())


def rotate(name: str, overlap: int, file: Path | None, **given: Any) -> None:
    """Print another secret of a key; the old one is accepted for a while longer."""
    from onward.service.keys import require_key, rotate_key

    with open_named(given) as store, store.begin() as connection:
        secret = new_secret(is_admin=require_key(connection, name).grant.is_admin)
        rotate_key(connection, name, secret, overlap, store.clock())
        _show(secret, file)


def revoke(name: str, **given: Any) -> None:
    """Revoke a key; servers refuse it within a second. Its usage is kept."""
    from onward.service.keys import revoke_key

    with open_named(given) as store, store.begin() as connection:
        revoke_key(connection, name, store.clock())


FORGET_HELP = """Delete a key and all data about it.

The whole prefix cache on the disk is removed too: it does not record whose prompts it holds.
"""


def forget(name: str, yes: bool, **given: Any) -> None:
    from onward.compose.engine import forget_prefixes
    from onward.compose.team import logged_folder
    from onward.service.keys import forget_in_pieces, require_key
    from onward.service.request_log import forget_in_folder

    settings = resolved_settings(given, (*NAMES, *_FORGOTTEN))
    folder = logged_folder(settings)
    with open_named(given) as store:
        with store.read() as connection:
            key_id = require_key(connection, name).grant.id
        if not yes:
            click.confirm(f"Delete the key {name} and everything that it has used?", abort=True, err=True)

        def forget_outside() -> None:
            if folder is not None:
                forget_in_folder(folder, key_id)
            if settings.prefix_cache_dir is not None:
                forget_prefixes(settings.prefix_cache_dir)

        forget_outside()  # first: once the key is gone, nothing says what is its own, and this cannot be repeated
        forget_in_pieces(store, name)
        forget_outside()  # what it asked for meanwhile


def list_keys(session: Session, **given: Any) -> None:
    """Show all keys."""
    from onward.service.keys import read_keys

    with open_named(given) as store, store.read() as connection:
        found = [_shown(key, store.clock()) for key in read_keys(connection)]
    emit(session.output, {"object": "list", "data": found}, lambda: _table(found))


def show(session: Session, name: str, **given: Any) -> None:
    """Show a key: its limits, and what it has used of them."""
    from onward.service.keys import read_keys, require_key
    from onward.service.limits import at
    from onward.service.reservations import read_usage

    with open_named(given) as store, store.read() as connection:
        grant = require_key(connection, name).grant
        found = next(key for key in read_keys(connection) if key.grant.id == grant.id)
        usage = at(grant.limits, read_usage(connection, grant.id), store.clock())
        used = {
            "running": usage.num_running,
            "tokens_today": usage.day_tokens,
            "tokens_this_month": usage.month_tokens,
            "cost_today": usage.day_cost / 1_000_000,
            "cost_this_month": usage.month_cost / 1_000_000,
        }
        document = _shown(found, store.clock()) | used
    emit(session.output, document, lambda: "\n".join(f"{name}: {_cell(value)}" for name, value in document.items()))


def audit(session: Session, name: str | None, **given: Any) -> None:
    """Show who did what to keys and models, oldest first."""
    from onward.service.keys import read_audit

    with open_named(given) as store, store.read() as connection:
        found = [
            {
                "time": utc_time(entry.at_ms),
                "actor": entry.actor,
                "action": entry.action,
                "key": entry.name or None,
                "id": entry.key_id,
                "detail": entry.detail,
            }
            for entry in read_audit(connection, name)
        ]
    columns = ["time", "actor", "action", "key", "id", "detail"]
    emit(
        session.output,
        {"object": "list", "data": found},
        lambda: table(columns, [[_cell(entry[column]) for column in columns] for entry in found]),
    )


def digest(name: str | None) -> None:
    """Print the line that accepts the key on standard input. A terminal does not show what is typed."""
    text = click.prompt("Key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()
    try:
        key = values.api_key(text)
    except ValueError as problem:
        raise click.UsageError(f"The key {problem}.") from None
    click.echo(_line(key, name))


def _shown(key: StoredKey, now_ms: int) -> dict[str, Any]:
    grant = key.grant
    limits = {name: getattr(grant.limits, name) for name in (*COUNTS, *SIZES)}
    limits |= {name: None if (cost := getattr(grant.limits, name)) is None else cost / 1_000_000 for name in COSTS}
    state = "revoked" if key.revoked_ms is not None else "valid"
    if state == "valid" and grant.expires_ms is not None and grant.expires_ms <= now_ms:
        state = "expired"
    return {
        "name": grant.name,
        "id": grant.id,
        "state": state,
        "admin": grant.is_admin,
        "models": None if grant.models is None else sorted(grant.models),
        "logged": grant.logs_requests,
        "priority": grant.priority,
        "expires": None if grant.expires_ms is None else utc_time(grant.expires_ms),
        "created": utc_time(key.created_ms),
        "secrets": sum(expires is None or expires > now_ms for _, expires in key.digests),
        **limits,
    }


def _table(found: list[dict[str, Any]]) -> str:
    """Return a table of keys, with those limits that any of them has."""
    limits = [name for name in limit_names() if any(key[name] is not None for key in found)]
    columns = ["name", "state", "admin", "models", "expires", *limits]
    return table(
        [name.replace("_", " ") for name in columns], [[_cell(key[name]) for name in columns] for key in found]
    )


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(value)
        case float():
            return amount(value)
    return str(value)


def _show(key: str, file: Path | None) -> None:
    """Print a key, or write it to a new file that only this user can read. Raises SetupError."""
    if file is None:
        click.echo(key)
        return
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(descriptor, "w") as target:
                target.write(key + "\n")
        except OSError:
            file.unlink(missing_ok=True)  # it would be in the way of the next try
            raise
    except FileExistsError:
        raise SetupError(f"The file {file} exists: remove it, or choose another name.") from None
    except OSError as error:
        raise SetupError(f"The key cannot be written to {file}: {error.strerror}.") from None


def _line(key: str, name: str | None) -> str:
    entry = f"sha256:{digest_of(key).hex()}"
    return entry if name is None else f"{name} = {entry}"


def _check_name(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    try:
        return None if name is None else values.key_name(name)
    except ValueError as problem:
        raise click.UsageError(f"The name {problem}.") from None


def _named(*, required: bool = False) -> click.Parameter:
    words = "Who uses the key: the access log and the metrics show it."
    metavar = "NAME" if required else "[NAME]"
    return Argument("name", words, required=required, metavar=metavar, callback=_check_name)


_FILE = click.Option(
    ["--file"], type=click.Path(path_type=Path), metavar="PATH", help="Write the key to a new file, not to the output."
)


def _command(name: str, callback: Callable[..., None], help: str, *params: click.Parameter) -> click.Command:
    return click.Command(name, callback=callback, params=list(params), help=help, context_settings=CONTEXT)


def _commands() -> dict[str, click.Command]:
    admin = click.Option(
        ["--admin"], is_flag=True, help="A key that sees everyone's usage and metrics, and completes nothing."
    )
    overlap = click.Option(
        ["--overlap"], type=Duration(), default=86_400_000, metavar="DURATION",
        help="How long the old secret is accepted.  [default 1d]",
    )  # fmt: skip
    folders = [setting_flag(setting(name), words) for name, words in _FORGOTTEN.items()]
    yes = click.Option(["--yes"], is_flag=True, help="Do not ask.")
    one = _named(required=True)
    new_help = (
        "Print a new random key. With a database it is stored there, with its limits. Without one, the line of a key "
        "file that accepts it is printed on standard error: `onward key new alice 2>> keys.txt`."
    )
    where = database_flags()
    return {
        "new": _command("new", new, new_help, _named(), *limit_flags(), admin, _FILE, *where),
        "list": session_command("list", list_keys, "Show all keys of the database.", where, can_connect=False),
        "show": session_command(
            "show", show, "Show a key: its limits, and what it has used of them.", [one, *where], can_connect=False
        ),
        "set": _command("set", change, f"Change a key. `{ANY}` removes a limit.", one, *limit_flags(), *where),
        "rotate": _command(
            "rotate", rotate, "Print another secret of a key; both work for a while.", one, overlap, _FILE, *where
        ),
        "revoke": _command("revoke", revoke, "Revoke a key. Its usage is kept.", one, *where),
        "forget": _command("forget", forget, FORGET_HELP, one, yes, *folders, *where),
        "audit": session_command(
            "audit",
            audit,
            "Show who did what to keys, or to one of them, and to models.",
            [_named(), *where],
            can_connect=False,
        ),
        "digest": _command(
            "digest",
            digest,
            "Print the line of a key file that accepts the key on standard input, without the key itself.",
            _named(),
        ),
    }


command = CommandGroup(
    "key",
    commands=_commands(),
    help="Make API keys: for --api-key-file, or with limits in a database.",
    context_settings=CONTEXT,
)
