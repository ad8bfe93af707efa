"""Resolve and load the models named on the command line of a benchmark."""

from __future__ import annotations

from onward.engine.model import ModelRunner
from onward.errors import OnwardError
from onward.models.resolve import ResolvedModel, resolve
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from onward.values import Precision


def model_id(name: str) -> str:
    """Return the id under which a name or path is served. Exits with an error message if there is no such model."""
    return find_model(name).id


def find_model(name: str) -> ResolvedModel:
    """Return a model by name or path. Exits with an error message if there is none."""
    try:
        return resolve(name, allow_download=False)
    except OnwardError as error:
        raise SystemExit(f"error: {error}") from None


def load(name: str, precision: Precision = "fast", *, threads: int = 0) -> tuple[ModelRunner, ResolvedModel]:
    """Load a model as `onward serve` does by default, except that nothing is kept in the cache. Exits as `find_model`
    does."""
    found = find_model(name)
    options = RuntimeOptions(precision=precision, threads=threads)
    return load_model(found.files, options, lambda line: None).model, found
