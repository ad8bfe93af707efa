"""Choices that must match a grammar: what they contain, how they end, and the laws."""

from __future__ import annotations

import json
import queue
import random
import re
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.constraints import grammars
from onward.constraints.errors import GrammarError
from onward.constraints.grammar import choice_grammar, regex_grammar
from onward.constraints.json_schema import json_schema_grammar
from onward.constraints.matcher import Matcher, TokenTrie
from onward.engine.client import Cancel, Stop, Submit
from onward.engine.events import Decoded, Event, Failed, Prefilled
from onward.engine.job import Job
from onward.engine.loop import EngineLoop
from onward.model_files.toy import END
from onward.text.assembler import TextRules
from tests.examples import examples, slow_but
from tests.waiting import PATIENCE_SECONDS

from .harness import TOKENIZER, JobOptions, events_of, make_engine, make_job, run, run_alone

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "time of day": {"enum": ["once", "upon a time"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "time of day", "tags"],
    "additionalProperties": False,
}
JSON = json_schema_grammar(SCHEMA)
DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[012])(, and so on)?"
STORY = "once upon a time there was a little fox"
GRAMMARS = {
    "json": JSON,
    "regex": regex_grammar(DATE),
    "choice": choice_grammar([STORY, STORY + " who lived", "🙂"]),
    "open": regex_grammar("[a-z ]+"),
}


def check_text(kind: str, text: str) -> None:
    """Check that a complete text matches its grammar, without the library."""
    match kind:
        case "json":
            value = json.loads(text)
            assert list(value) == ["name", "time of day", "tags"]
            assert len(value["name"]) <= 4 and value["time of day"] in ("once", "upon a time")
            assert len(value["tags"]) <= 2 and all(type(each) is bool for each in value["tags"])
        case "regex":
            assert re.fullmatch(DATE, text)
        case "choice":
            assert text in (STORY, STORY + " who lived", "🙂")
        case _:
            assert re.fullmatch("[a-z ]+", text)


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("temperature", slow_but([1.0], [0.0, 1.0, 5.0]))
def test_a_choice_that_ends_by_itself_matches_its_grammar(kind: str, temperature: float) -> None:
    job = make_job(choices=8, max_tokens=200, temperature=temperature, grammar=GRAMMARS[kind])
    choices = run_alone(job).choices.values()
    for choice in choices:
        if choice.finish_reason == "stop":
            check_text(kind, choice.text)
    assert any(choice.finish_reason == "stop" for choice in choices) or kind == "open"


def test_a_job_keeps_its_grammar_however_many_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes up to a second: it must not be repeated between two steps, where every job would wait for it."""
    compiled: list[str] = []
    compile_grammar = TokenTrie.compile

    def counting(trie: TokenTrie, grammar: str, limits: dict[str, Any]) -> Matcher:
        compiled.append(grammar)
        return compile_grammar(trie, grammar, limits)

    monkeypatch.setattr(TokenTrie, "compile", counting)
    monkeypatch.setattr(grammars, "MAX_COMPILED_GRAMMARS", 1)
    run(make_engine(), [make_job(choices=2, max_tokens=20, grammar=grammar) for grammar in GRAMMARS.values()])
    assert sorted(compiled) == sorted(GRAMMARS.values())


def test_a_complete_text_ends_the_choice_without_an_end_token() -> None:
    job = make_job(max_tokens=50, grammar=choice_grammar(["the end"]))
    choice = run_alone(job).choices[0]
    assert (choice.text, choice.finish_reason) == ("the end", "stop")
    assert END not in [sampled.token for sampled in choice.sampled]


def test_a_model_without_end_tokens_ends_where_nothing_can_follow() -> None:
    """Also where only the library's mask shows that a number cannot have another digit."""
    grammar = json_schema_grammar({"type": "number", "multipleOf": 1, "minimum": 0, "maximum": 5})
    ran = run_alone(make_job(grammar=grammar, choices=6, ignore_end=True))
    assert {choice.finish_reason for choice in ran.choices.values()} == {"stop"}
    assert {choice.text for choice in ran.choices.values()} <= set("012345")


def test_max_tokens_cuts_a_text_that_is_not_complete() -> None:
    choice = run_alone(make_job(max_tokens=3, grammar=choice_grammar([STORY]))).choices[0]
    assert choice.finish_reason == "length" and STORY.startswith(choice.text)
    exact = run_alone(make_job(max_tokens=4, grammar=choice_grammar(["abcd"]))).choices[0]
    assert (exact.text, exact.finish_reason) == ("abcd", "stop"), "complete with the last token"


def test_where_the_text_may_end_the_end_token_decides() -> None:
    bias = ((END, 100.0),)
    choice = run_alone(make_job(grammar=regex_grammar("a+"), logit_bias=bias, temperature=0.0)).choices[0]
    assert (choice.text, choice.finish_reason) == ("a", "stop")
    assert choice.sampled[-1].token == END
    empty = run_alone(make_job(grammar=regex_grammar("a*"), logit_bias=bias, temperature=0.0)).choices[0]
    assert (empty.text, empty.finish_reason) == ("", "stop")


def test_stop_sequences_end_a_constrained_choice() -> None:
    job = make_job(max_tokens=50, grammar=choice_grammar([STORY]), rules=TextRules(stops=("upon",)))
    choice = run_alone(job).choices[0]
    assert (choice.text, choice.finish_reason) == ("once ", "stop")


def test_log_probabilities_are_those_of_the_raw_distribution() -> None:
    plain = run_alone(make_job(choices=1, max_tokens=1)).choices[0].sampled[0]
    constrained = run_alone(make_job(choices=1, max_tokens=1, grammar=regex_grammar("z+"))).choices[0].sampled[0]
    assert constrained.top == plain.top
    assert constrained.token == ord("z") and constrained.logprob < -1.0


# --- the laws ----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(st.data())
def test_law_2_drafts_preemption_and_neighbours_do_not_change_a_byte(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 1 << 32)))
    engine = make_engine(blocks=data.draw(st.sampled_from([24, 200])), context=320, rows=data.draw(st.integers(1, 6)))
    jobs = []
    for _ in range(data.draw(st.integers(1, 5))):
        options: JobOptions = {
            "max_tokens": rng.randrange(1, 80),
            "choices": rng.choice([1, 3]),
            "seed": rng.randrange(4),
            "temperature": rng.choice([0.0, 0.5, 3.0]),
            "frequency_penalty": rng.choice([0.0, 0.7]),
            "grammar": rng.choice(["", *GRAMMARS.values()]),
            "prediction": TOKENIZER.encode(rng.choice(["", STORY, '{"name":"a"']), add_special_tokens=False),
            "rules": TextRules(stops=rng.choice([(), ("e",)])),
        }
        jobs.append(make_job([rng.choice([97, 98, 32]) for _ in range(rng.randrange(1, 60))], **options))
    results = run(engine, jobs)
    for job in jobs:
        alone = make_engine(speculate=False, context=320)
        assert results.jobs[job.id].bits == run(alone, [replace(job, prediction=())]).jobs[job.id].bits


def test_forced_text_takes_fewer_steps_than_tokens() -> None:
    job = make_job(max_tokens=200, temperature=0.0, grammar=choice_grammar(["x" * 100 + "!"]))
    engine = make_engine()
    result = run(engine, [job]).jobs[job.id].choices[0]
    assert result.finish_reason == "stop" and len(result.sampled) == 101
    assert engine.counters.num_steps < 30
    assert engine.load().drafts.grammar_accepted > 70
    assert result.num_accepted == result.num_rejected == 0, "not those of a prediction"


def test_drafts_that_the_grammar_forbids_are_not_evaluated() -> None:
    job = make_job("abcabcabcabc", max_tokens=60, grammar=regex_grammar("[xyz]+"), ignore_end=True)
    engine = make_engine()
    run(engine, [job])
    drafts = engine.load().drafts
    assert drafts.total == 0 or drafts.lookup_accepted > 0


# --- grammars that cannot be used --------------------------------------------------------------------------------


def test_a_grammar_that_becomes_too_complex_fails_its_request_alone() -> None:
    """Looking ahead exceeds the limits after the first token."""
    hostile = make_job(max_tokens=50, grammar=regex_grammar("b?a{1000000}"))
    other = make_job(max_tokens=10, ignore_end=True)
    events = events_of(make_engine(), [hostile, other])
    [failed] = [event for event in events if isinstance(event, Failed)]
    assert (failed.job, failed.kind) == (hostile.id, "constraint") and "too complex" in failed.reason
    assert sum(len(event.tokens) for event in events if isinstance(event, Decoded) and event.job == other.id) == 10


class Loop:
    """An engine's loop on a thread, whose grammars are compiled when the test lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_compile = threading.Event()
        self.compiling = threading.Event()
        compile_grammar = TokenTrie.compile

        def delayed(trie: TokenTrie, grammar: str, limits: dict[str, Any]) -> Matcher:
            assert threading.current_thread().name.startswith("onward-grammars")
            self.compiling.set()
            assert self.may_compile.wait(PATIENCE_SECONDS)
            return compile_grammar(trie, grammar, limits)

        monkeypatch.setattr(TokenTrie, "compile", delayed)
        self.loop = EngineLoop(make_engine())
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self.loop.run, args=[self._publish])
        self._thread.start()

    def _publish(self) -> None:
        for event in self.loop.take_events():
            self.events.put(event)

    def end(self) -> None:
        self.may_compile.set()
        self.loop.mailbox.put(Stop())
        self._thread.join(PATIENCE_SECONDS)

    def until_finished(self, job: Job) -> list[Event]:
        found: list[Event] = []
        while True:
            event = self.events.get(timeout=PATIENCE_SECONDS)
            found.append(event)
            if isinstance(event, Failed) or (
                isinstance(event, Decoded) and event.finish_reason and event.job == job.id
            ):
                return found


def test_other_jobs_run_while_a_grammar_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    try:
        known, also_known = (make_job(grammar=choice_grammar(["known"])) for _ in range(2))
        loop.may_compile.set()
        loop.loop.mailbox.put(Submit([known]))
        loop.until_finished(known)
        loop.may_compile.clear()
        loop.compiling.clear()
        waiting, other = make_job(grammar=choice_grammar(["first"])), make_job(max_tokens=5, ignore_end=True)
        loop.loop.mailbox.put(Submit([waiting]))
        assert loop.compiling.wait(PATIENCE_SECONDS)
        for job in (other, also_known):
            loop.loop.mailbox.put(Submit([job]))
            assert {event.job for event in loop.until_finished(job)} == {job.id}
        loop.may_compile.set()
        events = loop.until_finished(waiting)
        assert isinstance(events[0], Prefilled) and {event.job for event in events} == {waiting.id}
    finally:
        loop.end()


def test_a_job_that_waits_for_its_grammar_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    try:
        waiting, other = make_job(grammar=choice_grammar(["second"])), make_job(grammar=choice_grammar(["third"]))
        loop.loop.mailbox.put(Submit([waiting]))
        assert loop.compiling.wait(PATIENCE_SECONDS)
        loop.loop.mailbox.put(Cancel(waiting.request))
        loop.loop.mailbox.put(Submit([other]))
        loop.may_compile.set()
        assert {event.job for event in loop.until_finished(other)} == {other.id}
        assert loop.loop.num_taken == 2 and not loop.loop.preparing
    finally:
        loop.end()


def test_a_grammar_that_cannot_be_compiled_fails_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    try:
        loop.may_compile.set()
        broken = make_job(grammar="start: missing")
        loop.loop.mailbox.put(Submit([broken]))
        [failed] = loop.until_finished(broken)
        assert isinstance(failed, Failed) and failed.kind == "constraint" and "missing" in failed.reason
    finally:
        loop.end()


def test_grammars_of_one_client_do_not_hold_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    release, begun = threading.Event(), threading.Event()
    compile_grammar = TokenTrie.compile

    def held(trie: TokenTrie, grammar: str, limits: dict[str, Any]) -> Matcher:
        if grammar.endswith("held/"):
            begun.set()
            assert release.wait(PATIENCE_SECONDS)
        return compile_grammar(trie, grammar, limits)

    monkeypatch.setattr(TokenTrie, "compile", held)
    engine, ended = make_engine(), queue.SimpleQueue[int]()
    loop = EngineLoop(engine)

    def publish() -> None:
        for event in loop.take_events():
            if isinstance(event, Decoded) and event.finish_reason:
                ended.put(event.job)

    greedy = [make_job(client=1, max_tokens=3, grammar=regex_grammar(f"[a-z]{{{n}}}held")) for n in range(1, 4)]
    modest = make_job(client=2, max_tokens=3, grammar=regex_grammar("[a-z]+"))
    thread = threading.Thread(target=loop.run, args=(publish,))
    thread.start()
    try:
        for job in greedy:
            loop.mailbox.put(Submit([job]))
        assert begun.wait(PATIENCE_SECONDS)
        loop.mailbox.put(Submit([modest]))
        assert ended.get(timeout=PATIENCE_SECONDS) == modest.id
        release.set()
        assert {ended.get(timeout=PATIENCE_SECONDS) for _ in greedy} == {job.id for job in greedy}
    finally:
        release.set()
        loop.mailbox.put(Stop())
        thread.join()


def test_a_panic_while_a_grammar_is_compiled_fails_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    def panic(trie: TokenTrie, grammar: str, limits: dict[str, Any]) -> Matcher:
        raise Panic("index out of bounds")

    monkeypatch.setattr(TokenTrie, "compile", panic)
    engine = make_engine()
    for _ in range(2):  # it is remembered
        with pytest.raises(GrammarError, match="the library that compiles it failed: Panic"):
            engine.add(make_job(max_tokens=5, grammar=GRAMMARS["open"]))
    assert engine.idle
