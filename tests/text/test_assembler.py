import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import UNICODE

from onward.text.assembler import Assembled, Assembler, TextRules, TokenRecord
from onward.text.decoding import token_offsets


def record(token_bytes: bytes, token: int = 0) -> TokenRecord:
    return TokenRecord(token, token_bytes, -1.0, ())


def assemble(assembler: Assembler, tokens: list[bytes], special: frozenset[int] = frozenset()) -> Assembled:
    """Feed tokens 0, 1, … until a stop, flush at the end, and return all deltas joined."""
    whole = Assembled()
    for index, token_bytes in enumerate(tokens):
        part = assembler.feed(record(token_bytes, index), special=index in special)
        whole.text += part.text
        whole.records += part.records
        if assembler.stopped:
            return whole
    rest = assembler.flush()
    return Assembled(whole.text + rest.text, whole.records + rest.records)


@given(st.text(UNICODE), st.lists(st.integers(0, 4)))
def test_without_stops_all_tokens_and_all_text_are_emitted(text: str, sizes: list[int]) -> None:
    data, tokens = text.encode(), []
    for size in sizes:
        tokens.append(data[:size])
        data = data[size:]
    tokens.append(data)
    assembler = Assembler(TextRules())
    whole = assemble(assembler, tokens)
    assert whole.text == text
    assert [each.token_bytes for each in whole.records] == tokens
    assert assembler.num_completion_tokens == len(tokens)
    decoded = [len(b"".join(tokens[:index]).decode("utf-8", "ignore")) for index in range(len(tokens))]
    assert [each.offset for each in whole.records] == decoded


@given(
    st.lists(st.sampled_from([b"a", b"b", b"ab", b"\xc3", b"\xa9", b""]), max_size=12),
    st.lists(st.sampled_from(["ab", "ba", "aab", "éa", "bb"]), max_size=3),
    st.booleans(),
)
def test_records_are_never_emitted_before_their_text_and_none_is_lost(
    tokens: list[bytes], stops: list[str], keep: bool
) -> None:
    assembler = Assembler(TextRules(stops=tuple(stops), keep_terminators=keep))
    shown, released = 0, 0
    fed = 0
    for index, token_bytes in enumerate(tokens):
        part = assembler.feed(record(token_bytes, index), special=False)
        fed += 1
        shown += len(part.text)
        for each in part.records:
            assert each.token == released, "records are emitted in order"
            released += 1
            if not assembler.stopped:
                assert each.offset <= shown
        if assembler.stopped:
            break
        assert assembler.num_completion_tokens == released, "what is held back may be a stop string"
    else:
        released += len(assembler.flush().records)
    if keep or not assembler.stopped:
        assert released == fed
    assert assembler.num_completion_tokens == (released if not keep else assembler.num_completion_tokens)


WHOLE = st.sampled_from(["a", "b", "é", "€", "🙂", "b🙂"]).map(str.encode)
PARTS = st.sampled_from([b"\xc3", b"\xe2\x82", b"\x82", b"\xf0\x9f", b"\x99", b"\xed\xa0", b"\xff", b"a\xe2"])
TOKENS = st.lists(WHOLE | PARTS, max_size=12)
"""Tokens of complete characters, and parts of characters that may never be completed."""
PENDING = st.sampled_from([b"", b"\xe2", b"\xe2\x82"])


@given(st.lists(WHOLE, max_size=8))
def test_a_record_is_emitted_with_its_text(tokens: list[bytes]) -> None:
    assembler = Assembler(TextRules())
    for index, token_bytes in enumerate(tokens):
        part = assembler.feed(record(token_bytes, index), special=False)
        assert part.text == token_bytes.decode() and [each.token for each in part.records] == [index]


def test_a_record_is_held_back_as_long_as_its_text() -> None:
    assembler = Assembler(TextRules(stops=("abc",)))
    parts = [assembler.feed(record(each, index), special=False) for index, each in enumerate([b"xa", b"b", b"ab"])]
    assert [part.text for part in parts] == ["x", "", "ab"]
    assert [[each.token for each in part.records] for part in parts] == [[], [], [0, 1]]


def plain_offsets(tokens: list[bytes]) -> list[int]:
    """For each token, the offset of the character of its first byte, with all bytes decoded at once."""
    begun = [b"".join(tokens[:index]) + token_bytes[:1] for index, token_bytes in enumerate(tokens)]
    return [len(each.decode("utf-8", "replace")) - 1 for each in begun]


@given(TOKENS, PENDING)
def test_an_offset_is_that_of_the_character_of_the_first_byte(tokens: list[bytes], pending: bytes) -> None:
    records = assemble(Assembler(TextRules(), base=3, pending=pending), tokens).records
    expected = plain_offsets([pending, *tokens])[1:]
    assert [each.offset - 3 for each in records] == expected
    assert list(token_offsets([pending, *tokens]))[1:] == expected


@given(TOKENS, PENDING)
def test_a_token_of_complete_characters_is_in_the_text_at_its_offset(tokens: list[bytes], pending: bytes) -> None:
    whole = assemble(Assembler(TextRules(), base=3, pending=pending), tokens)
    text = "..." + whole.text
    for each in whole.records:
        spelled = each.token_bytes.decode(errors="replace")
        if "\ufffd" not in spelled:
            assert text[each.offset : each.offset + len(spelled)] == spelled


@given(TOKENS, st.sampled_from(["a", "ba", "éa", "🙂"]))
def test_completion_tokens_are_those_that_begin_before_the_stop(tokens: list[bytes], stop: str) -> None:
    assembler = Assembler(TextRules(stops=(stop,)))
    assemble(assembler, tokens)
    cut = b"".join(tokens).decode(errors="replace").find(stop)
    begin_before = [offset for offset in plain_offsets(tokens) if cut < 0 or offset < cut]
    assert assembler.num_completion_tokens == len(begin_before)


def test_a_token_after_an_incomplete_character_begins_after_its_replacement() -> None:
    whole = assemble(Assembler(TextRules()), [b"\xe2\x82", b"a", b"b"])
    assert whole.text == "\ufffdab"
    assert [each.offset for each in whole.records] == [0, 1, 2]


@pytest.mark.parametrize("before", ["€".encode(), "€".encode()[:2]])
def test_a_stop_token_after_an_incomplete_character_is_dropped_like_any_other(before: bytes) -> None:
    assembler = Assembler(TextRules(stops=("a",)))
    whole = assemble(assembler, [b"x", before, b"a"])
    assert whole.text == "x" + before.decode(errors="replace")
    assert [each.token_bytes for each in whole.records] == [b"x", before]
    assert assembler.num_completion_tokens == 2


def test_offsets_begin_at_the_base() -> None:
    whole = assemble(Assembler(TextRules(), base=4), [b"ab", b"c"])
    assert [each.offset for each in whole.records] == [4, 6]


def test_a_stop_ends_text_and_tokens_and_is_not_counted() -> None:
    assembler = Assembler(TextRules(stops=("END",)))
    whole = assemble(assembler, [b"one", b" E", b"N", b"D", b"!"])
    assert whole.text == "one "
    assert [each.token for each in whole.records] == [0, 1], "the token across the cut is kept"
    assert assembler.num_completion_tokens == 2


def test_tokens_after_a_stop_are_kept_when_the_echo_needs_an_entry_for_each() -> None:
    assembler = Assembler(TextRules(stops=("EN",), keep_terminators=True), base=10)
    whole = assemble(assembler, [b"one ", b"E", b"N"])
    assert whole.text == "one "
    assert [each.token for each in whole.records] == [0, 1, 2]
    assert [each.offset for each in whole.records] == [10, 14, 14]
    assert assembler.num_completion_tokens == 1


def test_a_stop_may_be_included() -> None:
    assembler = Assembler(TextRules(stops=("END",), include_stop=True))
    assert assemble(assembler, [b"one", b" EN", b"D!"]).text == "one END"
    assert assembler.num_completion_tokens == 3


def test_a_possible_beginning_of_a_stop_is_held_back_and_flushed_at_the_end() -> None:
    assembler = Assembler(TextRules(stops=("END",)))
    assert assembler.feed(record(b"one E"), special=False) == Assembled("one ")
    assert assembler.feed(record(b"N"), special=False).text == ""
    rest = assembler.flush()
    assert rest.text == "EN"
    assert len(rest.records) == 2


def test_special_tokens_have_no_text_unless_requested() -> None:
    tokens = [b"a", b"<s>", b"b"]
    assert assemble(Assembler(TextRules()), tokens, special=frozenset({1})).text == "ab"
    shown = assemble(Assembler(TextRules(skip_special=False)), tokens, special=frozenset({1}))
    assert shown.text == "a<s>b"


def test_an_end_token_has_a_record_only_when_the_echo_needs_it() -> None:
    for keep in (False, True):
        assembler = Assembler(TextRules(keep_terminators=keep), base=2)
        assembler.feed(record(b"ab"), special=False)
        end = record(b"<end>", 9)
        assert assembler.flush(end).records == ([end] if keep else [])
        assert assembler.num_completion_tokens == 1
        assert end.offset == (4 if keep else 0)


def test_stops_are_not_searched_for_before_min_tokens() -> None:
    assembler = Assembler(TextRules(stops=("a",), min_tokens=2))
    assert assemble(assembler, [b"a", b"a", b"b", b"a"]).text == "aab"


def test_an_incomplete_character_of_the_prompt_is_completed() -> None:
    assert assemble(Assembler(TextRules(), pending=b"\xf0\x9f"), [b"\x99", b"\x82!"]).text == "🙂!"


@pytest.mark.parametrize("tokens", [[b"\xf0\x9f"], [b"a", b"\xe2\x82"]])
def test_an_incomplete_character_at_the_end_is_not_text_but_its_tokens_are_emitted(tokens: list[bytes]) -> None:
    whole = assemble(Assembler(TextRules()), tokens)
    assert "�" not in whole.text
    assert len(whole.records) == len(tokens)
