"""The tables of the store, and the numbered migrations that make them."""

from __future__ import annotations

import secrets

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    insert,
    inspect,
    select,
    text,
    update,
)

from onward.errors import SetupError
from onward.service.limits import KeyUsage, Limits

METADATA = MetaData()

META = Table("meta", METADATA, Column("name", Text, primary_key=True), Column("value", BigInteger, nullable=False))
"""`version` of the schema, `revision`, which rises with every change of a key, and the random `id` of the database."""

LIMIT_NAMES = tuple(Limits.__dataclass_fields__)
USAGE_NAMES = tuple(KeyUsage.__dataclass_fields__)

KEYS = Table(
    "keys",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("is_admin", Integer, nullable=False),
    Column("models", Text),  # a JSON array of names; NULL: all
    *(Column(name, BigInteger) for name in LIMIT_NAMES),
    Column("logs_requests", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),
    Column("revoked_ms", BigInteger),
)
SECRETS = Table(
    "secrets",
    METADATA,
    Column("digest", Text, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),
)
"""SHA-256 of what clients send, in hexadecimal: several per key while it is rotated."""
USAGES = Table(
    "usages",
    METADATA,
    Column("key_id", Text, primary_key=True),
    *(Column(name, BigInteger, nullable=name in ("request_level", "token_level")) for name in USAGE_NAMES),
)
RESERVATIONS = Table(
    "reservations",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("face", Text, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in ("tokens", "cost", "day", "month")),
    Column("is_batch", Integer, nullable=False),
)
FACES = Table("faces", METADATA, Column("id", Text, primary_key=True), Column("seen_ms", BigInteger, nullable=False))
"""Servers that use the store, and when each was last seen."""
AUDIT = Table(
    "audit",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("detail", Text, nullable=False),
)
"""What was done to keys, and to models by keys, and by whom."""
REQUESTS = Table(
    "requests",
    METADATA,
    Column("id", Text, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in ("started_ms", "ended_ms")),
    *(
        Column(name, Text, nullable=False)
        for name in ("key_id", "key_name", "model", "fingerprint", "route", "batch", "seed", "finish_reasons")
    ),
    *(
        Column(name, BigInteger, nullable=False)
        for name in (
            *("status", "prompt_tokens", "cached_tokens", "completion_tokens"),
            *("computed_tokens", "delivered_tokens", "prompt_cost", "completion_cost"),
        )
    ),
    Column("first_token_ms", BigInteger),
)
"""The ledger (`records.LedgerRow`)."""
FILES = Table(
    "files",
    METADATA,
    Column("id", Text, primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("key_id", "purpose", "filename")),
    *(Column(name, BigInteger, nullable=False) for name in ("bytes", "created_ms")),
    Column("expires_ms", BigInteger),
    *(Column(name, Text, nullable=False) for name in ("face", "batch_id")),
    Column("lines", Integer, nullable=False),
)
"""Files of keys (`batch_records.StoredFile`). `face`: the server that is receiving it, "" once it is complete."""
CONTENTS = Table(
    "contents",
    METADATA,
    Column("file_id", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
"""What was uploaded, in parts that are numbered from 0."""
BATCHES = Table(
    "batches",
    METADATA,
    Column("id", Text, primary_key=True),
    *(
        Column(name, Text, nullable=False)
        for name in ("key_id", "endpoint", "input_file_id", "completion_window", "status")
    ),
    *(
        Column(name, Text)
        for name in ("model", "errors", "output_file_id", "error_file_id", "metadata", "idempotency_key")
    ),
    *(Column(name, BigInteger, nullable=False) for name in ("created_ms", "expires_ms")),
    *(Column(f"{name}_ms", BigInteger) for name in ("in_progress", "finalizing", "completed", "failed")),
    *(Column(f"{name}_ms", BigInteger) for name in ("expired", "cancelling", "cancelled")),
    Column("output_seconds", BigInteger),
    *(Column(name, BigInteger, nullable=False) for name in ("num_lines", "num_completed", "num_failed")),
    *(Column(name, BigInteger, nullable=False) for name in ("prompt_tokens", "completion_tokens", "reasoning_tokens")),
    Column("face", Text, nullable=False),
)
"""Batches (`batch_records.StoredBatch`). `face`: the server that validates it, "" if none does."""
LINES = Table(
    "lines",
    METADATA,
    Column("batch_id", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("state", Integer, nullable=False),
    *(Column(name, LargeBinary, nullable=False) for name in ("custom_id", "request", "result")),
    Column("face", Text, nullable=False),
    *(Column(name, Integer, nullable=False) for name in ("losses", "strikes")),
)
"""Lines of batches (`lines`). `custom_id` and `request` are JSON, `result` is a line of a file; `face`: the server that
computes it, "" if none does."""

REQUEST_LOG = Table(
    "request_log",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("document", Text, nullable=False),
)
"""What requests asked and got (`request_log.LoggedRequest`, as JSON), where an operator wants it kept."""

_FIRST = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
    "INSERT INTO meta VALUES ('version', 0), ('revision', 0)",
    "CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, is_admin INTEGER NOT NULL, models TEXT, "
    "requests_per_minute BIGINT, tokens_per_minute BIGINT, parallel_requests BIGINT, tokens_per_day BIGINT, "
    "tokens_per_month BIGINT, cost_per_day BIGINT, cost_per_month BIGINT, created_ms BIGINT NOT NULL, "
    "expires_ms BIGINT, revoked_ms BIGINT)",
    "CREATE TABLE secrets (digest TEXT PRIMARY KEY, key_id TEXT NOT NULL REFERENCES keys (id), "
    "created_ms BIGINT NOT NULL, expires_ms BIGINT)",
    "CREATE TABLE usages (key_id TEXT PRIMARY KEY REFERENCES keys (id), at_ms BIGINT NOT NULL, request_level BIGINT, "
    "token_level BIGINT, num_running BIGINT NOT NULL, day BIGINT NOT NULL, day_tokens BIGINT NOT NULL, "
    "day_cost BIGINT NOT NULL, month BIGINT NOT NULL, month_tokens BIGINT NOT NULL, month_cost BIGINT NOT NULL)",
    "CREATE TABLE reservations (id TEXT PRIMARY KEY, key_id TEXT NOT NULL REFERENCES keys (id), face TEXT NOT NULL, "
    "tokens BIGINT NOT NULL, cost BIGINT NOT NULL, day BIGINT NOT NULL, month BIGINT NOT NULL)",
    "CREATE INDEX reservations_by_face ON reservations (face)",
    "CREATE TABLE faces (id TEXT PRIMARY KEY, seen_ms BIGINT NOT NULL)",
    "CREATE TABLE audit (id TEXT PRIMARY KEY, at_ms BIGINT NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL, "
    "key_id TEXT NOT NULL, detail TEXT NOT NULL)",
)
_LEDGER = (
    "CREATE TABLE requests (id TEXT PRIMARY KEY, started_ms BIGINT NOT NULL, ended_ms BIGINT NOT NULL, "
    "key_id TEXT NOT NULL, key_name TEXT NOT NULL, model TEXT NOT NULL, fingerprint TEXT NOT NULL, "
    "route TEXT NOT NULL, seed TEXT NOT NULL, finish_reasons TEXT NOT NULL, status BIGINT NOT NULL, "
    "prompt_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, completion_tokens BIGINT NOT NULL, "
    "computed_tokens BIGINT NOT NULL, prompt_cost BIGINT NOT NULL, completion_cost BIGINT NOT NULL)",
    "CREATE INDEX requests_by_end ON requests (ended_ms)",
    "CREATE INDEX requests_by_key ON requests (key_id)",
)
_BATCHES_AND_DELIVERY = (
    "ALTER TABLE requests ADD COLUMN batch TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE requests ADD COLUMN delivered_tokens BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE requests ADD COLUMN first_token_ms BIGINT",
    "ALTER TABLE keys ADD COLUMN stored_bytes BIGINT",
    "ALTER TABLE keys ADD COLUMN logs_requests INTEGER NOT NULL DEFAULT 1",
)
_FILES_AND_BATCHES = (
    "CREATE TABLE files (id TEXT PRIMARY KEY, key_id TEXT NOT NULL, purpose TEXT NOT NULL, filename TEXT NOT NULL, "
    "bytes BIGINT NOT NULL, created_ms BIGINT NOT NULL, expires_ms BIGINT, face TEXT NOT NULL, "
    "batch_id TEXT NOT NULL, lines INTEGER NOT NULL)",
    "CREATE INDEX files_by_key ON files (key_id, created_ms)",
    "CREATE TABLE contents (file_id TEXT NOT NULL, number BIGINT NOT NULL, data BYTEA NOT NULL, "
    "PRIMARY KEY (file_id, number))",
    "CREATE TABLE batches (id TEXT PRIMARY KEY, key_id TEXT NOT NULL, endpoint TEXT NOT NULL, "
    "input_file_id TEXT NOT NULL, completion_window TEXT NOT NULL, status TEXT NOT NULL, model TEXT, errors TEXT, "
    "output_file_id TEXT, error_file_id TEXT, metadata TEXT, idempotency_key TEXT, created_ms BIGINT NOT NULL, "
    "expires_ms BIGINT NOT NULL, in_progress_ms BIGINT, finalizing_ms BIGINT, completed_ms BIGINT, failed_ms BIGINT, "
    "expired_ms BIGINT, cancelling_ms BIGINT, cancelled_ms BIGINT, output_seconds BIGINT, num_lines BIGINT NOT NULL, "
    "num_completed BIGINT NOT NULL, num_failed BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL, "
    "completion_tokens BIGINT NOT NULL, reasoning_tokens BIGINT NOT NULL, face TEXT NOT NULL)",
    "CREATE INDEX batches_by_key ON batches (key_id, created_ms)",
    "CREATE INDEX batches_by_status ON batches (status)",
    "CREATE TABLE lines (batch_id TEXT NOT NULL, number BIGINT NOT NULL, state INTEGER NOT NULL, "
    "custom_id BYTEA NOT NULL, request BYTEA NOT NULL, result BYTEA NOT NULL, face TEXT NOT NULL, "
    "losses INTEGER NOT NULL, strikes INTEGER NOT NULL, PRIMARY KEY (batch_id, number))",
    "CREATE INDEX lines_by_state ON lines (batch_id, state, number)",
    "CREATE INDEX lines_by_face ON lines (face)",
    "CREATE INDEX lines_of_suspects ON lines (batch_id) WHERE losses >= 2",
    "ALTER TABLE reservations ADD COLUMN is_batch INTEGER NOT NULL DEFAULT 0",
)
_REQUEST_LOG = (
    "CREATE TABLE request_log (id TEXT PRIMARY KEY, at_ms BIGINT NOT NULL, key_id TEXT NOT NULL, "
    "document TEXT NOT NULL)",
    "CREATE INDEX request_log_by_time ON request_log (at_ms)",
    "CREATE INDEX request_log_by_key ON request_log (key_id)",
)
_PRIORITY = ("ALTER TABLE keys ADD COLUMN priority INTEGER NOT NULL DEFAULT 1",)
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    _FIRST,
    _LEDGER,
    _BATCHES_AND_DELIVERY,
    _FILES_AND_BATCHES,
    _REQUEST_LOG,
    _PRIORITY,
)
"""Statements of SQL that both databases know. What was released is never changed: a change is another entry."""
VERSION = len(MIGRATIONS)
_MIGRATION_LOCK = 0x6F6E77617264
"""PostgreSQL's advisory lock for migrations."""


def migrate(connection: Connection) -> None:
    """Bring the tables to the newest version, within the transaction. Raises SetupError for those of a newer Onward."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
    found = schema_version(connection)
    if found > VERSION:
        raise SetupError(
            f"The database has schema version {found}, but this version of Onward knows {VERSION} at most: "
            "upgrade Onward, or name another database."
        )
    for statements in MIGRATIONS[found:]:
        for statement in statements:
            connection.execute(text(statement))
    if connection.execute(select(META.c.value).where(META.c.name == "id")).first() is None:
        connection.execute(insert(META).values(name="id", value=secrets.randbits(62)))
    if found < VERSION:
        connection.execute(update(META).where(META.c.name == "version").values(value=VERSION))


def schema_version(connection: Connection) -> int:
    """Return the version of the tables; 0 where there are none."""
    if not inspect(connection).has_table("meta"):
        return 0
    return int(connection.execute(select(META.c.value).where(META.c.name == "version")).scalar_one())
