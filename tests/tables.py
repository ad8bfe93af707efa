"""One test for all rows of a table, where a test for each would take longer to report than to run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_row(
    names: str | tuple[str, ...], rows: Iterable[Any], ids: Callable[[Any], object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, in one test: every row is tried, and the error of each that is wrong names it.

    Rows share the test's fixtures; what one changes the next one sees. `ids` returns the name of a row's value.
    """
    one_name = isinstance(names, str)
    named = (names,) if isinstance(names, str) else names
    table = list(rows)
    assert table, "a table without rows tests nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def whole(**fixtures: Any) -> None:
            wrong: list[Exception] = []
            for row in table:
                values = (row,) if one_name else row
                try:
                    test(**fixtures, **dict(zip(named, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    caught = error if isinstance(error, Exception) else AssertionError(str(error))
                    name = ", ".join(str(value if ids is None else ids(value)) for value in values)
                    caught.add_note(f"row: {name[:1000]}")
                    wrong.append(caught)
            if wrong:
                raise ExceptionGroup(f"{len(wrong)} of {len(table)} rows are wrong", wrong)

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in named]
        whole.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return whole

    return decorate
