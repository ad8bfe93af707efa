"""A form of multipart/form-data while it arrives: the file part by part, other fields whole, in any order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from onward.errors import InvalidRequest, UnsupportedContentType

FILE = "file"
MAX_FIELD_BYTES = 65_536
MAX_FIELDS = 64
MAX_HEADER_BYTES = 8192
"""Of a part of the form."""
MAX_NAME_CHARACTERS = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(slots=True)
class Form:
    """What has arrived of a form. `filename` is None before its file part began. `data` is the part of the file that
    has arrived and was not taken yet."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    data: bytearray = field(default_factory=bytearray)
    is_complete: bool = False


class FormParser:
    """Parses a body as it arrives into a Form. Errors are InvalidRequest."""

    def __init__(self, content_type: str) -> None:
        """Raises UnsupportedContentType."""
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            shown = content_type.partition(";")[0].strip() or "none"
            raise UnsupportedContentType(
                f"Unsupported content type: '{shown}'. This API method only accepts 'multipart/form-data' requests. "
                "Please try again with a supported content type."
            )
        self.form = Form()
        self._header = [b"", b""]
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._value: bytearray | None = None
        """The name of the field that is arriving; None for the file."""
        self._num_header_bytes = 0
        """Of the part that is arriving."""
        with _reported():
            self._parser = self._make_parser(options[b"boundary"])

    def _make_parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._collect(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._collect(1, data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._receive,
                "on_part_end": self._end,
                "on_end": self._complete,
            },
        )

    def feed(self, data: bytes) -> None:
        with _reported():
            self._parser.write(data)

    def _begin(self) -> None:
        self._headers = {}
        self._num_header_bytes = 0

    def _collect(self, index: int, data: bytes) -> None:
        self._num_header_bytes += len(data)
        if self._num_header_bytes > MAX_HEADER_BYTES:
            raise InvalidRequest("A part of the form has headers that are too long.")
        self._header[index] += data

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[name.lower()] = value
        self._header = [b"", b""]

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._name != FILE:
            self._value = bytearray()
            return
        if self.form.filename is not None:
            raise InvalidRequest("The form has more than one file.", param=FILE)
        self._value = None
        self.form.filename = base_name(options.get(b"filename", b"").decode(errors="replace"))

    def _receive(self, data: bytes, start: int, end: int) -> None:
        if self._value is None:
            self.form.data += memoryview(data)[start:end]
            return
        self._value += memoryview(data)[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"The field '{self._name[:64]}' of the form is too long.", param=self._name[:64])

    def _end(self) -> None:
        if self._value is not None:
            self.form.fields[self._name] = self._value.decode(errors="replace")
            if len(self.form.fields) > MAX_FIELDS:
                raise InvalidRequest(f"The form has more than {MAX_FIELDS} fields.")

    def _complete(self) -> None:
        self.form.is_complete = True


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except FormParserError as problem:
        raise InvalidRequest(f"We could not parse the multipart body of your request: {problem}.") from None


def base_name(name: str) -> str:
    """Return the last part of a path, without control characters: clients of any system send them."""
    last = re.split(r"[/\\]", _CONTROL.sub("", name))[-1].strip()
    return last[-MAX_NAME_CHARACTERS:] if last not in ("", ".", "..") else "file"
