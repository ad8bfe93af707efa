"""Multipart forms: in any pieces, from any client, and bodies that are not forms."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import InvalidRequest, UnsupportedContentType
from onward.server import multipart
from onward.server.multipart import MAX_FIELD_BYTES, FormParser, base_name

BOUNDARY = "----formdata-undici-0123456789"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def form(*parts: tuple[str, bytes]) -> bytes:
    """Return a form of heads and values."""
    body = b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (BOUNDARY.encode(), head.encode(), value) for head, value in parts)
    return body + b"--%b--\r\n" % BOUNDARY.encode()


PURPOSE = 'Content-Disposition: form-data; name="purpose"'
FILE = 'content-disposition: form-data; name="file"; filename="{}"\r\nContent-Type: text/plain'


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), min_size=1))
def test_a_form_is_the_same_however_it_is_split(data: bytes, sizes: list[int]) -> None:
    body = form((FILE.format("é.jsonl"), data), (PURPOSE, b"batch"))
    parser, position, index = FormParser(TYPE), 0, 0
    while position < len(body):
        size = sizes[index % len(sizes)]
        parser.feed(body[position : position + size])
        position, index = position + size, index + 1
    assert parser.form.is_complete
    assert (bytes(parser.form.data), parser.form.filename) == (data, "é.jsonl")
    assert parser.form.fields == {"purpose": "batch"}


def test_a_boundary_may_be_quoted_and_a_form_that_ends_early_is_not_complete() -> None:
    boundary = uuid4().hex
    parser = FormParser(f'Multipart/Form-Data; boundary="{boundary}"')
    parser.feed(f"--{boundary}\r\n{PURPOSE}\r\n\r\nbatch\r\n--{boundary}".encode())
    assert not parser.form.is_complete
    parser.feed(b"--\r\n")
    assert parser.form.is_complete and parser.form.fields == {"purpose": "batch"}


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        ("a.jsonl", "a.jsonl"),
        ("../../../etc/passwd", "passwd"),
        ("/abs/x", "x"),
        ("C:\\temp\\y.jsonl", "y.jsonl"),
        ("a\x00b\r\n.jsonl", "ab.jsonl"),
        ("..", "file"),
        ("", "file"),
        ("x" * 300, "x" * 255),
    ],
)
def test_names_have_no_folders_and_no_control_characters(sent: str, known: str) -> None:
    assert base_name(sent) == known


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", "multipart/mixed; boundary=x"])
def test_other_content_types_are_refused(kind: str) -> None:
    with pytest.raises(UnsupportedContentType):
        FormParser(kind)


def test_what_is_not_a_form_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="could not parse"):
        FormParser(TYPE).feed(b"not a form at all")
    with pytest.raises(InvalidRequest, match="more than one file"):
        FormParser(TYPE).feed(form((FILE.format("a"), b""), (FILE.format("b"), b"")))
    with pytest.raises(InvalidRequest, match="too long"):
        FormParser(TYPE).feed(form((PURPOSE, b"x" * (MAX_FIELD_BYTES + 1))))
    with pytest.raises(InvalidRequest, match="Boundary length"):
        FormParser(f"multipart/form-data; boundary={'b' * 300}")


def test_headers_of_a_part_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of the library have none."""
    for head in (f"A: {'x' * 300}", *["\r\n".join(f"A{number}: x" for number in range(7))]):
        parser = FormParser(TYPE)
        with monkeypatch.context() as patch:
            patch.setattr(multipart, "MAX_HEADER_BYTES", 20)
            with pytest.raises(InvalidRequest, match="headers that are too long"):
                parser.feed(form((head, b"")))
