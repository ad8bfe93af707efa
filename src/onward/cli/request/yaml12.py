"""YAML 1.2 with the core schema (YAML 1.2.2 §10.3), as plain Python values.

A library parses; scalars are resolved here, because libraries resolve more than the core schema: dates,
`1_000`, `0777`, and in YAML 1.1 `yes` and `1:30`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

_NULL = re.compile(r"null|Null|NULL|~|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class NotYaml(ValueError):
    """The text is not a single YAML document, or contains values that JSON does not have."""


def load(text: str, *, flow_only: bool = False) -> Any:
    """Return the value of one document. Raises NotYaml.

    With `flow_only` the whole text must be a flow collection or a quoted string: text that is YAML by accident
    (`Q: why?`, `- a`, `# x`, `*x`) is rejected.
    """
    stripped = text.strip()
    if flow_only and stripped[:1] not in ("[", "{", '"', "'"):
        raise NotYaml("neither a flow collection nor a quoted string")
    try:
        return json.loads(stripped, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        pass
    node = _compose(stripped)
    if node is None:
        return None
    if flow_only and node.end_mark.index != len(stripped):
        raise NotYaml("trailing text after the value")
    return _value(node, ())


def dump(value: Any) -> str:
    """Return a value as block YAML, ending in a newline."""
    import io

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.width = 1 << 20
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = io.StringIO()
    yaml.dump(value, out)
    return out.getvalue().removesuffix("...\n")


def _compose(text: str) -> Node | None:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        composed: Node | None = YAML(typ="safe", pure=True).compose(text)
    except (YAMLError, ValueError, RecursionError) as problem:
        raise NotYaml(str(problem)) from None
    return composed


def _value(node: Node, ancestors: tuple[int, ...]) -> Any:
    from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

    if id(node) in ancestors:
        raise NotYaml("a value that contains itself")
    ancestors = (*ancestors, id(node))
    if isinstance(node, ScalarNode):
        return node.value if node.style else _plain(node.value)
    if isinstance(node, SequenceNode):
        return [_value(item, ancestors) for item in node.value]
    assert isinstance(node, MappingNode)
    return {_key(key, ancestors): _value(value, ancestors) for key, value in node.value}


def _key(node: Node, ancestors: tuple[int, ...]) -> str:
    """Return a mapping's key for JSON: the text of a scalar."""
    if not isinstance(node.value, str):
        raise NotYaml("a key that is not a scalar")
    return node.value


def _parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python parses at most 4,300 digits
        raise NotYaml("a number with too many digits") from None


def _plain(text: str) -> Any:
    """Return an unquoted scalar by the core schema. `.inf` and `.nan` stay text: JSON has no such numbers."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _INTEGER.fullmatch(text):
        return _parse_integer(text)
    if _OCTAL.fullmatch(text) or _HEXADECIMAL.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
