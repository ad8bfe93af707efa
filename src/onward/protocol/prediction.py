"""The check of `prediction`: OpenAI's predicted outputs, in the shape of its Chat API."""

from __future__ import annotations

from onward.protocol import refusals
from onward.protocol.parameter import Parameter, Profile
from onward.protocol.ranges import unicode_text


def check_prediction(row: Parameter, value: object, path: str, profile: Profile) -> str | None:
    """The predicted text, its parts joined; an empty one is none."""
    fields = _object(value, path, "content", profile)
    content, path = fields["content"], f"{path}.content"
    if isinstance(content, str):
        return unicode_text(content, path) or None
    if not isinstance(content, (list, tuple)):
        raise refusals.wrong_type(path, "one of a string or array of objects", content)
    if not content:
        raise refusals.empty_array(path)
    return "".join(_part(part, f"{path}[{index}]", profile) for index, part in enumerate(content)) or None


def _part(value: object, path: str, profile: Profile) -> str:
    return unicode_text(_object(value, path, "text", profile)["text"], f"{path}.text")


def _object(value: object, path: str, kind: str, profile: Profile) -> dict[str, object]:
    """An object whose `type` is `kind`, and which has a field of that name."""
    if not isinstance(value, dict):
        raise refusals.wrong_type(path, "an object", value)
    if profile != "lenient":
        for name in value:
            if name not in ("type", kind):
                raise refusals.unknown_inner(f"{path}.{name}")
    for name in ("type", kind):
        if name not in value:
            raise refusals.missing(f"{path}.{name}")
    given = unicode_text(value["type"], f"{path}.type")
    if given != kind:
        raise refusals.no_such_value(f"{path}.type", given, kind)
    return value
