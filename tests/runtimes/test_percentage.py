"""Percent of something slow: said when there is news, and not too often."""

from __future__ import annotations

from onward.runtimes.percentage import Percentage


def test_percent_are_said_a_second_apart_and_in_steps() -> None:
    now, said = 0.0, list[str]()
    percentage = Percentage("Converting m", 200, said.append, lambda: now)
    percentage.advance(50)
    assert said == [], "so soon"
    now = 1.0
    percentage.advance(10)
    assert said == ["Converting m: 30 %"]
    now = 1.5
    percentage.advance(6)
    now = 60.0
    percentage.advance(3)
    assert len(said) == 1, "34 percent are hardly news"
    percentage.advance(1000)
    assert said[1:] == ["Converting m: 99 %"], "only whoever is done knows that it is done"
