"""The one thread of a server that writes to the store: what waits is committed together."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection

from onward.service.store import DatabaseAway, Deadlock, Store

log = logging.getLogger("onward.service")

T = TypeVar("T")
MAX_GROUP = 500
"""Operations of one transaction."""
LAST = "\uffff"
"""The key of operations that come after all others of a transaction."""
MAX_KEPT = 10_000
"""Operations that wait for a database that is away."""
KEPT_SECONDS = 1.0
"""How often they are tried at most: a database that answers may still refuse them, such as a full one."""


@dataclass(slots=True)
class _Operation:
    run: Callable[[Connection], Any]
    key: str
    is_kept: bool = False
    """Whether it is run again where the database was away."""
    future: Future[Any] = field(default_factory=Future)


class Writer:
    """Runs operations in transactions, several in one where several wait. Called on any thread.

    An operation is a function of a connection. It may be run again after its transaction was rolled back, so it changes
    nothing but the database. Those of a transaction run in the order of their keys, so that two servers never wait for
    each other's rows; operations of one key keep their order.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._kept: list[_Operation] = []
        """What is run again when the database answers. Used on this writer's thread, as the next."""
        self._tries_kept_at = 0.0
        self._thread = threading.Thread(target=self._run, name="onward-store", daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[Connection], T], key: str = "") -> Future[T]:
        """Run an operation soon. The future has its result once it is committed; or DatabaseAway, and then it may have
        been committed nevertheless."""
        operation = _Operation(run, key)
        self._waiting.put(operation)
        return operation.future

    def ensure(self, run: Callable[[Connection], object], key: str = "") -> None:
        """Run an operation soon; where the database is away, when it answers, so perhaps a second time, and after later
        ones of its key. It is lost only with this server, or where MAX_KEPT others wait."""
        self._waiting.put(_Operation(run, key, is_kept=True))

    def close(self, timeout: float | None = None) -> None:
        """Run what waits, then end the thread; wait for that for at most `timeout` seconds."""
        self._waiting.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        is_open = True
        while is_open:
            group, is_open = self._next_group()
            if group and self._run_group(group) and self._kept and time.monotonic() >= self._tries_kept_at:
                self._run_kept()

    def _run_group(self, group: list[_Operation]) -> bool:
        """Run operations in one transaction, or each in one of its own if one of them fails, or if together they and a
        transaction of another server wait for each other. Returns whether the database answered."""
        group.sort(key=lambda operation: operation.key)
        try:
            self._commit(group)
        except DatabaseAway as error:
            if not isinstance(error, Deadlock) or len(group) == 1:
                self._fail(group, error)
                return False
            self._commit_alone(group)
        except Exception as error:
            if len(group) > 1:
                self._commit_alone(group)
            else:
                self._fail(group, error)
        return True

    def _run_kept(self) -> None:
        """Run what was kept while the database was away, until it is away again."""
        self._tries_kept_at = time.monotonic() + KEPT_SECONDS
        kept, self._kept = self._kept, []
        while kept and self._run_group(kept[:MAX_GROUP]):
            del kept[:MAX_GROUP]
        self._kept += kept[MAX_GROUP:]

    def _next_group(self) -> tuple[list[_Operation], bool]:
        """Return what waits, at least one operation, and whether more may come."""
        group: list[_Operation] = []
        operation = self._waiting.get()
        while operation is not None:
            if operation.future.set_running_or_notify_cancel():
                group.append(operation)
            if len(group) >= MAX_GROUP or self._waiting.empty():
                return group, True
            operation = self._waiting.get()
        return group, False

    def _commit(self, group: list[_Operation]) -> None:
        with self._store.begin() as connection:
            results = [operation.run(connection) for operation in group]
        for operation, result in zip(group, results, strict=True):
            operation.future.set_result(result)

    def _commit_alone(self, group: list[_Operation]) -> None:
        """Run each operation in a transaction of its own: one of them failed, and not the database."""
        for operation in group:
            try:
                self._commit([operation])
            except Exception as error:
                self._fail([operation], error)

    def _fail(self, group: list[_Operation], error: Exception) -> None:
        is_away = isinstance(error, DatabaseAway)
        if not is_away:
            log.error("an operation of the database failed", exc_info=error)
        for operation in group:
            if is_away and operation.is_kept and len(self._kept) < MAX_KEPT:
                self._kept.append(operation)
            else:
                operation.future.set_exception(error)
