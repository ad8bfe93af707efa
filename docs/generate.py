"""Generates what the code knows: reference pages, and the picture, table and trace in maintainers.md. `make docs` runs
it; a test compares.

python docs/generate.py           write the pages
python docs/generate.py --check   exit with 1 if a page is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fields import fields_page
from request_trace import trace
from rooms import rooms_picture, rooms_table

from onward import errors
from onward.api.dialects import DIALECTS
from onward.api.openai.parameters import PARAMETERS
from onward.api.parameter import Parameter
from onward.settings import GROUPS, Option, options

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
NOTE = "<!-- Written by docs/generate.py. Do not edit. -->"


def settings_page() -> Iterator[str]:
    yield "# Settings"
    yield NOTE
    yield (
        "Each setting can be set by a flag of `onward serve`, an environment variable, or a key in `onward.toml`, in "
        "this order of precedence. The file is the one named by `--config` or `ONWARD_CONFIG`, otherwise "
        "`./onward.toml`, otherwise `onward/onward.toml` in the user's configuration folder. `onward config show` "
        "shows each value and its origin. `./onward.toml` is announced on standard error, and refused if another user "
        "owns it or every user can write it. Commands other than `onward serve`, and programs that use "
        "`onward.Onward`, do not let it choose what is downloaded, or a content filter that is code, and nobody lets "
        "it choose `cache_dir`, `data_dir`, `database`, `log_requests`, `otlp_endpoint`, `prefix_cache_dir` or "
        "`prefix_cache_disk`: they need "
        "`ONWARD_CONFIG`. Sizes can be written as `512MB` or `2GiB`. For details see "
        "[`--profile`](../how-to/serve.md#programs-that-the-default-refuses) and "
        "[`--content-filter`](../how-to/content-filters.md)."
    )
    for group in GROUPS:
        yield f"## {group}"
        rows = [option for option in options() if option.group == group]
        yield "| flag | variable | default | meaning |\n|---|---|---|---|\n" + "\n".join(map(setting_row, rows))


def setting_row(option: Option) -> str:
    flag = f"`{option.flag}{'' if option.is_boolean else ' ' + option.metavar}`".replace("|", "\\|")
    return f"| {flag} | `{option.environment}` | {default_of(option)} | {cell(option.help)} |"


def default_of(option: Option) -> str:
    if option.name == "cache_dir":
        return "the user's cache folder"
    if option.is_boolean:
        return "on" if option.default else "off"
    if option.default in ((), None):
        return "auto" if "auto" in option.metavar else "none"
    value = option.default[0] if isinstance(option.default, tuple) else option.default
    return f"`{value}`"


def parameters_page() -> Iterator[str]:
    yield "# Request parameters"
    yield NOTE
    yield (
        "The fields of a request to `/v1/completions`, which are also the options of `onward completions create` and "
        "the keyword arguments of the Python API. Every field but `model` may be null, which means its default. Other "
        "fields are rejected, unless the server runs with `--profile lenient`."
    )
    own = [row for row in PARAMETERS if not row.dialect]
    yield "## OpenAI's fields"
    yield parameter_table([row for row in own if row.origin == "openai"])
    yield "## Fields of `stream_options`"
    yield parameter_table([inner for row in own for inner in row.inner])
    yield "## Extensions"
    yield "The strict profile rejects these fields, and those of other servers."
    yield parameter_table([row for row in own if row.origin == "extension"])
    yield "## Fields of other servers"
    yield parameter_table([row for row in PARAMETERS if row.dialect])
    for row in PARAMETERS:
        if row.dialect and row.inner:
            yield f"## Fields of `{row.name}`"
            yield parameter_table(list(row.inner))


def dialects_page() -> Iterator[str]:
    yield "# Fields of other servers' APIs"
    yield NOTE
    yield (
        "The requests of the [dialects](../how-to/dialects.md). A field takes effect; or only the value that "
        "describes this server is accepted; or it is checked and has no meaning here; or it is refused. Other fields "
        "are refused, unless the server runs with `--profile lenient`. Null means that a field is not set."
    )
    for dialect, routes in DIALECTS.items():
        yield f"## {dialect}"
        for route in routes:
            yield f"### {route.path}"
            rows = list((route.body or {}).values())
            yield route.summary
            if rows:
                yield parameter_table(rows)
            for inner in (row for row in rows if row.inner):
                yield f"Fields of `{inner.name}`:"
                yield parameter_table(list(inner.inner))


def parameter_table(rows: list[Parameter]) -> str:
    lines = [
        f"| `{row.name}` | {type_of(row)} | {range_of(row)} | {shown(row.default)} | {cell(row.help)} |" for row in rows
    ]
    return "| field | type | range | default | meaning |\n|---|---|---|---|---|\n" + "\n".join(lines)


TYPES = {
    "prompt": "string, array of strings, array of integers, or array of arrays of integers",
    "prediction": "object",
    "stop": "string or array of strings",
    "logit_bias": "object with number values",
    "duration": "string or number",
    "link": "string",
    "strings": "array of strings",
    "token_ids": "array of integers",
    "files": "array of objects",
    "snippets": "array of objects",
    "json_schema": "object, string or boolean",
    "response_format": "object",
    "json_format": "string or object",
    "typed_grammar": "object",
    "token_biases": "array of pairs, or object with number values",
}


def type_of(row: Parameter) -> str:
    if row.kind == "fixed":
        return f"only {shown(row.only[0])}" if row.only else "refused"
    in_text = {None: "", "commas": ", or string with commas", "json": ", or string of JSON"}[row.text]
    return TYPES.get(row.kind, row.kind) + in_text


def range_of(row: Parameter) -> str:
    parts = [bounds(row.minimum, row.maximum)]
    if row.max_items is not None:
        parts.append(f"at most {row.max_items}")
    if row.strict_maximum is not None:
        parts.append(f"in strict {bounds(row.minimum, row.strict_maximum)}")
    return ", ".join(filter(None, parts))


def bounds(minimum: float | None, maximum: float | None) -> str:
    if minimum is None and maximum is None:
        return ""
    return f"{'' if minimum is None else f'{minimum:g}'} … {'' if maximum is None else f'{maximum:g}'}".strip()


def shown(value: object) -> str:
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def errors_page() -> Iterator[str]:
    yield "# Errors"
    yield NOTE
    yield (
        'Every error response is `{"error": {"message", "type", "param", "code"}}` with all four keys. In the Python '
        "API, these errors are exceptions of `onward.errors`. In a stream that has begun, the error is the last event."
    )
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    api_errors = [each for each in classes if issubclass(each, errors.ApiError) and each is not errors.ApiError]
    lines = [f"| {each.status} | `{each.__name__}` | `{each.type}` | {code_of(each)} |" for each in api_errors]
    yield "| status | class | type | code |\n|---|---|---|---|\n" + "\n".join(lines)


def code_of(error: type[errors.ApiError]) -> str:
    return f"`{error.code}`" if error.code else "null, or set by the error"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "settings.md": settings_page,
    "parameters.md": parameters_page,
    "errors.md": errors_page,
    "fields.md": lambda: fields_page(NOTE),
    "dialects.md": dialects_page,
}


def maintainers_page() -> str:
    """Return the page with its generated parts as they are now."""
    text = (DOCS / "maintainers.md").read_text(encoding="utf-8")
    for begin, made, end in (
        ("<!-- rooms: written by docs/generate.py -->\n", rooms_table(), "\n<!-- /rooms -->"),
        ("are left out):\n\n```text\n", trace(), "\n```\n"),
    ):
        before, found, rest = text.partition(begin)
        _, closing, after = rest.partition(end)
        assert found and closing, f"maintainers.md has no {begin!r}"
        text = before + begin + made + end + after
    return text


def reference_page(name: str) -> str:
    return "\n\n".join(PAGES[name]()) + "\n"


FILES: dict[Path, Callable[[], str]] = {
    **{REFERENCE / name: partial(reference_page, name) for name in PAGES},
    DOCS / "images" / "rooms.svg": rooms_picture,
    DOCS / "maintainers.md": maintainers_page,
}


def main() -> int:
    stale = []
    for path, make in FILES.items():
        text = make()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path.relative_to(DOCS)))
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        print(("Out of date: " if "--check" in sys.argv else "Wrote ") + ", ".join(stale))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
