"""The gate: bytes or keyword arguments in, a CompletionRequest out, or OpenAI's refusal.

The order of the checks is that of spec/completions §11: JSON, object, model present, unknown fields, types
and ranges, fields together. What needs the model (token ids, context, suffix) is checked behind the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from onward.protocol import refusals
from onward.protocol.containers import check_logit_bias, check_stop
from onward.protocol.crossfield import check_together
from onward.protocol.parameter import Parameter, Profile
from onward.protocol.parameters import PARAMETERS, known_parameters
from onward.protocol.prediction import check_prediction
from onward.protocol.prompts import check_prompt
from onward.protocol.ranges import (
    check_boolean,
    check_duration,
    check_fixed,
    check_integer,
    check_link,
    check_number,
    check_string,
    unicode_text,
)
from onward.protocol.request import CompletionRequest

_CHECKS: dict[str, Callable[[Parameter, object, str, Profile], object]] = {
    "string": check_string,
    "integer": check_integer,
    "number": check_number,
    "boolean": check_boolean,
    "prompt": check_prompt,
    "prediction": check_prediction,
    "stop": check_stop,
    "logit_bias": check_logit_bias,
    "fixed": check_fixed,
    "duration": check_duration,
    "link": check_link,
}
_PROFILES: tuple[Profile, ...] = ("strict", "default", "lenient")
_KNOWN = {profile: known_parameters(profile) for profile in _PROFILES}
_KNOWN_INNER = {
    (profile, row.name): known_parameters(profile, row.inner)
    for profile in _PROFILES
    for row in PARAMETERS
    if row.kind == "object"
}


def decode_request(body: bytes, *, profile: Profile = "default", path_model: str | None = None) -> CompletionRequest:
    """Read an HTTP body. `path_model` is the model that the URL names, if it does.

    Raises InvalidRequest.
    """
    return check_request(decode_object(body), profile=profile, path_model=path_model)


def decode_object(body: bytes) -> dict[str, object]:
    """A JSON object's fields; of a repeated key the last counts. Raises InvalidRequest."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise refusals.not_json() from None
    if type(value) is not dict:
        raise refusals.not_an_object(value)
    return value


def check_request(
    fields: Mapping[str, object], *, profile: Profile = "default", path_model: str | None = None
) -> CompletionRequest:
    """Check a request given as Python values, JSON's or keyword arguments. Null is a field's default.

    Raises InvalidRequest.
    """
    model = _model(fields.get("model"), profile, path_model)
    known = _KNOWN[profile]
    if profile != "lenient":
        unknown = [name for name in fields if name not in known]
        if unknown:
            raise refusals.unrecognized(unknown)
    values = _Values(profile)
    for name, value in fields.items():
        if value is not None and name in known:
            values.take(known[name], value)
    if fields.get("stream_options") is not None and not values.own.get("stream"):
        raise refusals.stream_options_without_stream()
    arguments = values.resolved()
    arguments["model"] = model
    return check_together(CompletionRequest(**arguments))  # type: ignore[arg-type]


def _model(given: object, profile: Profile, path_model: str | None) -> str | None:
    """The model's name, from the body or the path. Only the lenient profile can do without."""
    if given is None or given == "":
        if path_model or profile == "lenient":
            return path_model or None
        raise refusals.no_model()
    name = unicode_text(given, "model")
    if path_model and name != path_model:
        raise refusals.model_and_engine()
    return name


class _Values:
    """Checked values on their way to the request, those of other spellings apart."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.own: dict[str, object] = {}
        self.aliased: list[tuple[Parameter, object]] = []

    def take(self, row: Parameter, value: object, path: str = "") -> None:
        """Check one value (not None) and keep it. Raises InvalidRequest."""
        path = path or row.name
        if row.kind == "object":
            self._take_inner(row, value, path)
            return
        checked = _CHECKS[row.kind](row, value, path, self.profile)
        if row.alias_of is not None:
            self.aliased.append((row, checked))
        elif row.field is not None:
            self.own[row.field] = checked

    def _take_inner(self, row: Parameter, value: object, path: str) -> None:
        if not isinstance(value, dict):
            raise refusals.wrong_type(path, "an object", value)
        known = _KNOWN_INNER[self.profile, row.name]
        for name, inner in value.items():
            inner_path = f"{path}.{name}"
            if name in known:
                if inner is not None:
                    self.take(known[name], inner, inner_path)
            elif self.profile != "lenient":
                raise refusals.unknown_inner(inner_path)

    def resolved(self) -> dict[str, object]:
        """Arguments for CompletionRequest: own spellings win over others, except over one that overrides."""
        arguments = dict(self.own)
        for row, value in self.aliased:
            assert row.alias_of is not None
            if row.overrides or row.alias_of not in arguments:
                arguments[row.alias_of] = value
        if arguments.get("best_of") == 0:
            arguments["best_of"] = None  # 0 means "not given" (spec/completions §2.5)
        if "top_k" in arguments:
            arguments["top_k"] = max(0, arguments["top_k"])  # type: ignore[call-overload]
        return arguments
