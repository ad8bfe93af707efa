"""Decode a completion request from an HTTP body or from keyword arguments, or raise OpenAI's error.

Checks run in the order of behaviour §11: JSON, object, model present, unknown fields, types and ranges, rules
between fields. What depends on the model (token ids, context length, suffix) is checked in `completions.plan`.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Mapping

import msgspec

from onward.api import refusals
from onward.api.body_limits import DEFAULT_LIMITS, BodyLimits
from onward.api.checks import CHECKS, check_fields_together, unicode_text
from onward.api.malformed_json import malformed_json
from onward.api.openai.parameters import PARAMETERS, known_parameters
from onward.api.parameter import Parameter, Profile
from onward.completions.request import CompletionRequest

_PROFILES: tuple[Profile, ...] = ("strict", "default", "lenient")
_KNOWN = {profile: known_parameters(profile) for profile in _PROFILES}
_KNOWN_INNER = {
    (profile, row.name): known_parameters(profile, row.inner)
    for profile in _PROFILES
    for row in PARAMETERS
    if row.kind == "object"
}


def decode_object(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> dict[str, object]:
    """Return the fields of a JSON object; the last of repeated keys wins, a byte order mark is skipped. Raises
    InvalidRequest."""
    body = body.removeprefix(BOM_UTF8)
    limits.check(body)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_json(body, error) from None
    if type(value) is not dict:
        raise refusals.not_an_object(value)
    return value


def check_request(
    fields: Mapping[str, object], *, profile: Profile = "default", path_model: str | None = None
) -> CompletionRequest:
    """Check a request given as Python values: decoded JSON or keyword arguments. None means a field's default.

    Raises InvalidRequest.
    """
    model = _model(fields.get("model"), profile, path_model)
    known = _KNOWN[profile]
    if profile != "lenient":
        unknown = [name for name in fields if name not in known]
        if unknown:
            raise refusals.unrecognized(unknown, () if profile == "strict" else known)
    checked = _CheckedFields(profile)
    for name, value in fields.items():
        if value is not None and name in known:
            checked.add(known[name], value)
    if fields.get("stream_options") is not None and not checked.own.get("stream"):
        raise refusals.stream_options_without_stream()
    arguments = checked.to_arguments()
    arguments["model"] = model
    return check_fields_together(CompletionRequest(**arguments))  # type: ignore[arg-type]


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


class _CheckedFields:
    """Collects checked values for CompletionRequest. Values of aliases are kept apart until all are known."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.own: dict[str, object] = {}
        self.aliased: list[tuple[Parameter, object]] = []

    def add(self, row: Parameter, value: object, path: str = "") -> None:
        """Check one value (not None) and store it. Raises InvalidRequest."""
        path = path or row.name
        if row.kind == "object":
            self._add_inner(row, value, path)
            return
        checked = CHECKS[row.kind](row, value, path, self.profile)
        if row.alias_of is not None:
            self.aliased.append((row, checked))
        elif row.field is not None:
            self.own[row.field] = checked

    def _add_inner(self, row: Parameter, value: object, path: str) -> None:
        if not isinstance(value, dict):
            raise refusals.wrong_type(path, "an object", value)
        known = _KNOWN_INNER[self.profile, row.name]
        for name, inner in value.items():
            inner_path = f"{path}.{name}"
            if name in known:
                if inner is not None:
                    self.add(known[name], inner, inner_path)
            elif self.profile != "lenient":
                raise refusals.unknown_inner(inner_path)

    def to_arguments(self) -> dict[str, object]:
        """Return arguments for CompletionRequest. A parameter's own name wins over an alias that does not override."""
        arguments = dict(self.own)
        for row, value in sorted(self.aliased, key=lambda pair: pair[0].converts is not None):
            assert row.alias_of is not None
            if row.unset is not None and value == row.unset:
                continue
            if row.overrides or row.alias_of not in arguments:
                arguments[row.alias_of] = value if row.converts is None else row.converts(value, arguments)
        if arguments.get("best_of") == 0:
            arguments["best_of"] = None  # 0 means "not set" (behaviour §2.5)
        if "top_k" in arguments:
            arguments["top_k"] = max(0, arguments["top_k"])  # type: ignore[call-overload]
        return arguments
