"""Which replica computes a flight."""

from __future__ import annotations

from onward.engine.client import EngineInfo
from onward.engine.job import Job
from onward.engine_load import EngineLoad
from onward.engines.book import JobBook
from onward.engines.cluster.deployment import CALLS, CALLS_PER_ROW, replicas_for_calls, replicas_for_rows
from onward.engines.cluster.flight import Flight, Placement
from onward.engines.cluster.members import Member
from onward.engines.cluster.messages import PROTOCOL, ReplicaInfo
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules

ENGINE = EngineInfo(vocab_size=256, context_length=2048, max_rows=4, fingerprint="fp")


def member(name: str, load: int, report: int) -> Member:
    info = ReplicaInfo(PROTOCOL, "toy", "toy", 1, "toy", ENGINE, 0.0)
    return Member(name, info, EngineLoad(num_running=load), report)


def flight() -> Flight:
    job = Job(1, 1, (1, 2, 3), 1, 8, SamplingParams(), TextRules(), frozenset())
    return Flight([job], "fp", JobBook())


def test_a_report_counts_once_however_often_it_arrives() -> None:
    """With four replicas, each report of one arrives four times."""
    placement = Placement()
    busy = {"a": member("a", 0, 1)}
    placement.update(busy)
    running = flight()
    with placement.load_of(running, "a"):
        assert placement.load("a") == 1
    for _ in range(8):  # made while the flight ran
        placement.update({"a": member("a", 1, 2)})
    assert placement.load("a") == 0
    for report in (3, 4):
        placement.update({"a": member("a", 1, report)})
    assert placement.load("a") == 1  # the load of another face


def test_lost_and_silent_replicas_are_the_last_choice() -> None:
    placement, moved = Placement(), flight()
    names = ["a", "b", "c"]
    placement.update({name: member(name, 0, 1) for name in names})
    home = placement.choose(moved, names, silent=())
    moved.begin_call(home)
    moved.lost()
    second = placement.choose(moved, names, silent=())
    assert second != home
    (third,) = set(names) - {home, second}
    assert placement.choose(moved, names, silent=(second,)) == third
    assert placement.choose(moved, [home, second], silent=(second,)) == home
    assert placement.choose(moved, [home], silent=(home,)) == home


class Context:
    """The part of `ray.serve.config.AutoscalingContext` that is used."""

    def __init__(self, metrics: dict[str, dict[str, float]] | None, target: float = 20.0) -> None:
        self.aggregated_metrics = metrics
        self.config = self
        self._target = target

    def get_target_ongoing_requests(self) -> float:
        return self._target


def test_replicas_are_scaled_by_calls_not_by_messages_of_ray() -> None:
    metrics = {CALLS: {"a": 30.0, "b": 25.0}, CALLS_PER_ROW: {"a": 1.0, "b": 0.5}, "running_requests": {"a": 2.0}}
    assert replicas_for_calls(Context(metrics)) == (2.75, {})
    assert replicas_for_rows(Context(metrics, 0.5)) == (3.0, {})
    assert replicas_for_calls(Context(None)) == replicas_for_rows(Context(None)) == (0.0, {})
