"""Decode a completion request from an HTTP body or from keyword arguments, or raise OpenAI's error.

Checks run in the order of behaviour §11: JSON, object, model present, unknown fields, types and ranges, rules
between fields. What depends on the model (token ids, context length, suffix) is checked in `completions.plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onward.api import refusals
from onward.api.checks import check_fields_together, unicode_text
from onward.api.decoder import check_fields
from onward.api.openai.parameters import TABLES
from onward.api.parameter import FieldTable, Profile
from onward.completions.request import CompletionRequest


def _without_model(rows: FieldTable) -> FieldTable:
    """Return a table in which the model may be absent: `_model` checks whether it may."""
    return FieldTable(*(replace(row, required=False) if row.name == "model" else row for row in rows.values()))


_TABLES = {profile: _without_model(rows) for profile, rows in TABLES.items()}


def check_request(
    fields: Mapping[str, object], *, profile: Profile = "default", path_model: str | None = None
) -> CompletionRequest:
    """Check a request given as Python values: decoded JSON or keyword arguments. None means a field's default.

    Raises InvalidRequest.
    """
    model = _model(fields.get("model"), profile, path_model)
    checked = check_fields(fields, _TABLES[profile], profile)
    if fields.get("stream_options") is not None and not checked["stream"]:
        raise refusals.stream_options_without_stream()
    if checked.get("best_of") == 0:
        checked["best_of"] = None  # 0 means "not set" (behaviour §2.5)
    checked["top_k"] = max(0, checked.get("top_k", 0))
    return check_fields_together(CompletionRequest(**{**checked, "model": model}))


def _model(given: object, profile: Profile, path_model: str | None) -> str | None:
    """Return the model's name from the body or the path; None only in the lenient profile. Raises InvalidRequest."""
    if given is None or given == "":
        if path_model or profile == "lenient":
            return path_model or None
        raise refusals.no_model()
    name = unicode_text(given, "model")
    if path_model and name != path_model:
        raise refusals.model_and_engine()
    return name
