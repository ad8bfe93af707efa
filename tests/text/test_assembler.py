import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.text.assembler import Assembler, Release, TextRules, TokenRecord
from onward.text.offsets import token_offsets


def record(piece: bytes, token: int = 0) -> TokenRecord:
    return TokenRecord(token, piece, -1.0, ())


def assemble(assembler: Assembler, pieces: list[bytes], special: frozenset[int] = frozenset()) -> Release:
    """Feed pieces as tokens 0, 1, … until a stop; flush at the end; all that was released, joined."""
    whole = Release()
    for index, piece in enumerate(pieces):
        part = assembler.feed(record(piece, index), special=index in special)
        whole.text += part.text
        whole.records += part.records
        if assembler.stopped:
            return whole
    rest = assembler.flush()
    return Release(whole.text + rest.text, whole.records + rest.records)


@given(st.text(), st.lists(st.integers(0, 4)))
def test_without_stops_every_token_and_all_text_come_out(text: str, sizes: list[int]) -> None:
    data, pieces = text.encode(), []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    pieces.append(data)
    assembler = Assembler(TextRules())
    whole = assemble(assembler, pieces)
    assert whole.text == text
    assert [each.piece for each in whole.records] == pieces
    assert assembler.billed == len(pieces)
    decoded = [len(b"".join(pieces[:index]).decode("utf-8", "ignore")) for index in range(len(pieces))]
    assert [each.offset for each in whole.records] == decoded


@given(
    st.lists(st.sampled_from([b"a", b"b", b"ab", b"\xc3", b"\xa9", b""]), max_size=12),
    st.lists(st.sampled_from(["ab", "ba", "aab", "éa", "bb"]), max_size=3),
    st.booleans(),
)
def test_records_never_come_before_their_text_and_none_is_lost(
    pieces: list[bytes], stops: list[str], keep: bool
) -> None:
    assembler = Assembler(TextRules(stops=tuple(stops), keep_terminators=keep))
    shown, released = 0, 0
    fed = 0
    for index, piece in enumerate(pieces):
        part = assembler.feed(record(piece, index), special=False)
        fed += 1
        shown += len(part.text)
        for each in part.records:
            assert each.token == released, "records come in order"
            released += 1
            if not assembler.stopped:
                assert each.offset <= shown
        if assembler.stopped:
            break
    else:
        released += len(assembler.flush().records)
    if keep or not assembler.stopped:
        assert released == fed
    assert assembler.billed == (released if not keep else assembler.billed)


WHOLE = st.sampled_from(["a", "b", "é", "€", "🙂", "b🙂"]).map(str.encode)
PARTS = st.sampled_from([b"\xc3", b"\xe2\x82", b"\x82", b"\xf0\x9f", b"\x99", b"\xed\xa0", b"\xff", b"a\xe2"])
PIECES = st.lists(WHOLE | PARTS, max_size=12)
"""Tokens of whole characters, and parts of some that may never be finished."""
PENDING = st.sampled_from([b"", b"\xe2", b"\xe2\x82"])


def plain_offsets(pieces: list[bytes]) -> list[int]:
    """For each token the place, in all bytes decoded at once, of the character that its first byte belongs to."""
    begun = [b"".join(pieces[:index]) + piece[:1] for index, piece in enumerate(pieces)]
    return [len(each.decode("utf-8", "replace")) - 1 for each in begun]


@given(PIECES, PENDING)
def test_an_offset_is_that_of_the_first_bytes_character(pieces: list[bytes], pending: bytes) -> None:
    records = assemble(Assembler(TextRules(), base=3, pending=pending), pieces).records
    expected = plain_offsets([pending, *pieces])[1:]
    assert [each.offset - 3 for each in records] == expected
    assert list(token_offsets([pending, *pieces]))[1:] == expected


@given(PIECES, PENDING)
def test_a_token_of_whole_characters_stands_in_the_text_where_its_offset_says(
    pieces: list[bytes], pending: bytes
) -> None:
    whole = assemble(Assembler(TextRules(), base=3, pending=pending), pieces)
    text = "..." + whole.text
    for each in whole.records:
        spelt = each.piece.decode(errors="replace")
        if "\ufffd" not in spelt:
            assert text[each.offset : each.offset + len(spelt)] == spelt


@given(PIECES, st.sampled_from(["a", "ba", "éa", "🙂"]))
def test_billed_at_a_stop_are_the_tokens_that_begin_before_it(pieces: list[bytes], stop: str) -> None:
    assembler = Assembler(TextRules(stops=(stop,)))
    assemble(assembler, pieces)
    cut = b"".join(pieces).decode(errors="replace").find(stop)
    begin_before = [offset for offset in plain_offsets(pieces) if cut < 0 or offset < cut]
    assert assembler.billed == len(begin_before)


def test_a_token_behind_an_unfinished_character_begins_behind_its_replacement() -> None:
    whole = assemble(Assembler(TextRules()), [b"\xe2\x82", b"a", b"b"])
    assert whole.text == "\ufffdab"
    assert [each.offset for each in whole.records] == [0, 1, 2]


@pytest.mark.parametrize("before", ["€".encode(), "€".encode()[:2]])
def test_a_stop_token_behind_an_unfinished_character_is_dropped_like_any_other(before: bytes) -> None:
    assembler = Assembler(TextRules(stops=("a",)))
    whole = assemble(assembler, [b"x", before, b"a"])
    assert whole.text == "x" + before.decode(errors="replace")
    assert [each.piece for each in whole.records] == [b"x", before]
    assert assembler.billed == 2


def test_offsets_begin_at_the_base() -> None:
    whole = assemble(Assembler(TextRules(), base=4), [b"ab", b"c"])
    assert [each.offset for each in whole.records] == [4, 6]


def test_a_stop_cuts_text_and_tokens_and_is_not_billed() -> None:
    assembler = Assembler(TextRules(stops=("END",)))
    whole = assemble(assembler, [b"one", b" E", b"N", b"D", b"!"])
    assert whole.text == "one "
    assert [each.token for each in whole.records] == [0, 1], "the token that straddles the cut stays"
    assert assembler.billed == 2


def test_tokens_after_a_stop_are_kept_when_the_echo_needs_an_entry_each() -> None:
    assembler = Assembler(TextRules(stops=("EN",), keep_terminators=True), base=10)
    whole = assemble(assembler, [b"one ", b"E", b"N"])
    assert whole.text == "one "
    assert [each.token for each in whole.records] == [0, 1, 2]
    assert [each.offset for each in whole.records] == [10, 14, 14]
    assert assembler.billed == 1


def test_a_stop_may_be_included() -> None:
    assembler = Assembler(TextRules(stops=("END",), include_stop=True))
    assert assemble(assembler, [b"one", b" EN", b"D!"]).text == "one END"
    assert assembler.billed == 3


def test_what_might_be_a_stop_is_held_and_flushed_at_the_end() -> None:
    assembler = Assembler(TextRules(stops=("END",)))
    assert assembler.feed(record(b"one E"), special=False) == Release("one ")
    assert assembler.feed(record(b"N"), special=False).text == ""
    rest = assembler.flush()
    assert rest.text == "EN"
    assert len(rest.records) == 2


def test_special_tokens_have_no_text_unless_asked_for() -> None:
    pieces = [b"a", b"<s>", b"b"]
    assert assemble(Assembler(TextRules()), pieces, special=frozenset({1})).text == "ab"
    shown = assemble(Assembler(TextRules(skip_special=False)), pieces, special=frozenset({1}))
    assert shown.text == "a<s>b"


def test_an_end_token_leaves_a_record_only_when_the_echo_needs_it() -> None:
    for keep in (False, True):
        assembler = Assembler(TextRules(keep_terminators=keep), base=2)
        assembler.feed(record(b"ab"), special=False)
        end = record(b"<end>", 9)
        assert assembler.flush(end).records == ([end] if keep else [])
        assert assembler.billed == 1
        assert end.offset == (4 if keep else 0)


def test_no_stop_is_looked_for_before_min_tokens() -> None:
    assembler = Assembler(TextRules(stops=("a",), min_tokens=2))
    assert assemble(assembler, [b"a", b"a", b"b", b"a"]).text == "aab"


def test_a_character_left_unfinished_by_the_prompt_is_finished() -> None:
    assert assemble(Assembler(TextRules(), pending=b"\xf0\x9f"), [b"\x99", b"\x82!"]).text == "🙂!"


@pytest.mark.parametrize("pieces", [[b"\xf0\x9f"], [b"a", b"\xe2\x82"]])
def test_an_unfinished_character_at_the_end_is_no_text_but_its_tokens_are_released(pieces: list[bytes]) -> None:
    whole = assemble(Assembler(TextRules()), pieces)
    assert "�" not in whole.text
    assert len(whole.records) == len(pieces)
