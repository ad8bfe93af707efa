"""`onward tokenize`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.cli.commands import tokenize
from onward.text.decoding import render_token
from tests.examples import UNICODE

from ..conftest import onward
from ..terminal import Terminal


def test_tokens_are_printed_as_ids_text_and_bytes() -> None:
    found = json.loads(onward("tokenize", "-m", "toy", "once é\U0001f600").stdout)
    assert found["count"] == len(found["tokens"]) == len(found["pieces"])
    assert b"".join(bytes.fromhex(each) for each in found["bytes"]).decode() == "once é\U0001f600"
    assert "bytes:\\xf0" in found["pieces"]


def test_piped_text_is_tokenized() -> None:
    assert json.loads(onward("tokenize", "-m", "toy", stdin="ab").stdout)["tokens"] == [97, 98]
    assert json.loads(onward("tokenize", "-m", "toy", "-", stdin="ab").stdout)["tokens"] == [97, 98]
    assert onward("tokenize", "-m", "toy").exit_code == 2


def test_a_file_has_the_tokens_of_its_text() -> None:
    Path("story.txt").write_text("ab", encoding="utf-8")
    Path("latin1.txt").write_bytes(b"caf\xe9")
    assert json.loads(onward("tokenize", "-m", "toy", "@story.txt").stdout)["tokens"] == [97, 98]
    refused = onward("tokenize", "-m", "toy", "@latin1.txt")
    assert refused.exit_code == 2
    assert "TEXT: latin1.txt is not UTF-8 text" in refused.stderr


def test_tokens_are_coloured_on_a_terminal() -> None:
    with Terminal("tokenize", "-m", "toy", "a once") as terminal:
        assert terminal.end() == 0
        assert terminal.screen == (
            "{48;5;24:a}{48;5;58: once}\n"
            '      97  "a"                  {dim:61}\n'
            '     267  " once"              {dim:20 6f 6e 63 65}\n'
            "{dim:2 tokens}\n"
        )


@pytest.mark.slow
def test_a_character_split_over_tokens_is_shown_whole() -> None:
    with Terminal("tokenize", "-m", "toy", os.fsdecode("ü".encode()), PYTHONIOENCODING="utf-8") as terminal:
        assert terminal.end() == 0
        assert terminal.screen == (
            "{48;5;24:·}{48;5;58:ü}\n"
            "     195  bytes:\\xc3           {dim:c3}\n"
            "     188  bytes:\\xbc           {dim:bc}\n"
            "{dim:2 tokens}\n"
        )


@given(st.text(UNICODE))
def test_tokens_from_a_server_add_up_to_the_text(text: str) -> None:
    pieces = [bytes([byte]) for byte in text.encode()]
    assert [tokenize._raw(render_token(piece)) for piece in pieces] == pieces
    spelled = tokenize._spelled(pieces)
    assert len(spelled) == len(pieces)
    assert "".join(spelled).replace("·", "") == text.replace("·", "")


def test_one_token_is_singular_in_tokenize() -> None:
    assert onward("tokenize", "-m", "toy", "a", "--format", "text").stdout.endswith("\n1 token\n")


def test_arguments_and_formats_are_explained_where_they_are_used() -> None:
    shown = " ".join(onward("tokenize", "--help").stdout.split())
    assert "[TEXT] The text; @FILE reads a file" in shown
    assert "auto: a table or a report on a terminal" in shown and "such as count." in shown
    assert "choices.0.text" not in shown
