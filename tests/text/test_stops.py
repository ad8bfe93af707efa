from hypothesis import given
from hypothesis import strategies as st

from onward.text.stops import Match, StopFinder

letters = st.text(alphabet="ab", max_size=12)
stops_of_letters = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4).map(tuple)


def feed_all(finder: StopFinder, deltas: list[str]) -> tuple[str, Match | None]:
    safe = ""
    for delta in deltas:
        more, match = finder.feed(delta)
        safe += more
        if match:
            return safe, match
    return safe, None


def plain_search(text: str, stops: tuple[str, ...]) -> Match | None:
    """The definition: a search character by character."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return Match(min(starts), end)
    return None


@given(st.lists(letters), stops_of_letters)
def test_the_result_depends_on_the_text_alone(deltas: list[str], stops: tuple[str, ...]) -> None:
    text = "".join(deltas)
    finder = StopFinder(stops)
    safe, match = feed_all(finder, deltas)
    assert match == plain_search(text, stops)
    if match:
        assert safe == text[: match.start]
    else:
        assert safe + finder.held == text


@given(st.lists(letters), stops_of_letters)
def test_text_is_held_back_only_while_it_can_be_the_beginning_of_a_stop(
    deltas: list[str], stops: tuple[str, ...]
) -> None:
    finder = StopFinder(stops)
    _, match = feed_all(finder, deltas)
    if match is None and finder.held:
        assert any(stop.startswith(finder.held) for stop in stops)


def test_a_stop_split_over_deltas_is_found() -> None:
    assert feed_all(StopFinder(("\n\n",)), ["one\n", "\ntwo"]) == ("one", Match(3, 5))


def test_the_stop_that_is_complete_first_wins_in_any_order_of_the_list() -> None:
    assert feed_all(StopFinder(("world", "lo")), ["hello world"]) == ("hel", Match(3, 5))


def test_the_longer_of_two_stops_that_end_together_wins() -> None:
    assert feed_all(StopFinder(("c", "abc")), ["xxabc"]) == ("xx", Match(2, 5))


def test_skipped_text_is_returned_and_not_searched() -> None:
    finder = StopFinder(("ab",))
    assert finder.feed("a") == ("", None)
    assert finder.skip("b") == "ab"
    assert finder.feed("ab") == ("", Match(2, 4))
