"""Adapters of an engine: jobs wait for an adapter that is loading, and unloading waits for the adapter's jobs."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from onward.engine.adapters import AdapterRead, Adapters, read
from onward.engine.client import AdapterOutcome, LoadAdapter
from onward.engine.events import Failed
from onward.engine.job import Job
from onward.engine.thread import EngineThread
from onward.errors import ModelFolderError, SetupError

from .harness import make_engine, make_job
from .test_thread import Inbox, ended

WAIT_SECONDS = 60


class FakeLoader:
    """An AdapterLoader of adapters whose ids are the names of their files."""

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.may_read.set()
        self.added: list[str] = []
        self.removed: list[str] = []
        self.has_removed = threading.Event()
        self.problem: Exception | None = None

    def read(self, path: Path) -> tuple[str, object]:
        assert self.may_read.wait(WAIT_SECONDS)
        if self.problem is not None:
            raise self.problem
        return path.name, path

    def add(self, adapter: str, read: object) -> None:
        self.added.append(adapter)

    def remove(self, adapter: str) -> None:
        self.removed.append(adapter)
        self.has_removed.set()


def started() -> tuple[EngineThread, FakeLoader, Inbox]:
    engine, loader, inbox = make_engine(), FakeLoader(), Inbox()
    engine.adapters = loader
    thread = EngineThread(engine)
    thread.start(inbox)
    return thread, loader, inbox


def reading() -> tuple[EngineThread, FakeLoader, Inbox, Future[None]]:
    """An engine that begins to load the adapter a and finishes once the loader is allowed to."""
    thread, loader, inbox = started()
    loader.may_read.clear()
    return thread, loader, inbox, thread.load_adapter("a", Path("/x/a"))


def job_with(adapter: str) -> Job:
    return replace(make_job(max_tokens=5), adapter=adapter)


def test_jobs_wait_for_an_adapter_that_is_being_read() -> None:
    thread, loader, inbox, loading = reading()
    waiting, other = job_with("a"), job_with("")
    thread.submit([waiting])
    thread.submit([other])
    inbox.wait_for(ended(other))
    assert not any(event.job == waiting.id for event in inbox.events)
    loader.may_read.set()
    loading.result(WAIT_SECONDS)
    inbox.wait_for(ended(waiting))
    assert loader.added == ["a"]
    thread.load_adapter("a", Path("/x/a")).result(WAIT_SECONDS)
    assert loader.added == ["a"], "it was loaded already"
    thread.stop()


def test_a_job_that_waits_can_be_cancelled() -> None:
    thread, loader, inbox, loading = reading()
    waiting, other = job_with("a"), job_with("a")
    thread.submit([waiting])
    thread.submit([other])
    thread.cancel(waiting.request)
    loader.may_read.set()
    loading.result(WAIT_SECONDS)
    inbox.wait_for(ended(other))
    assert not any(event.job == waiting.id for event in inbox.events)
    thread.stop()


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (ModelFolderError("It was made for another model."), "It was made for another model."),
        (MemoryError(), "The memory does not suffice for the adapter /x/a."),
        (OSError("gone"), "The adapter /x/a cannot be read: gone"),
    ],
)
def test_an_adapter_that_cannot_be_loaded_fails_only_jobs_that_have_it(problem: Exception, words: str) -> None:
    thread, loader, inbox, loading = reading()
    loader.problem = problem
    waiting, other = job_with("a"), job_with("")
    thread.submit([waiting])
    loader.may_read.set()
    with pytest.raises(SetupError) as refused:
        loading.result(WAIT_SECONDS)
    assert str(refused.value) == words
    inbox.wait_for(lambda event: event == Failed(waiting.id, "rejected", "the adapter a is not loaded"))
    thread.submit([other])
    inbox.wait_for(ended(other))
    thread.stop()


def test_files_that_changed_after_they_were_named_are_refused() -> None:
    found = read(FakeLoader(), LoadAdapter("a", "/x/b"))
    assert found == AdapterRead("a", problem="The files of the adapter /x/b have changed.")


def test_an_adapter_is_freed_when_its_last_job_has_ended() -> None:
    thread, loader, inbox, loading = reading()
    last = job_with("a")
    thread.submit([last])
    thread.unload_adapter("a")
    loader.may_read.set()
    loading.result(WAIT_SECONDS)
    inbox.wait_for(ended(last))
    assert loader.has_removed.wait(WAIT_SECONDS)
    later = job_with("a")
    thread.submit([later])
    inbox.wait_for(lambda event: event.job == later.id and isinstance(event, Failed))
    thread.stop()
    assert loader.removed == ["a"]


def test_an_adapter_that_is_asked_for_again_before_it_is_freed_stays() -> None:
    loader = FakeLoader()
    adapters = Adapters(loader)
    assert adapters.begin("a") is loader
    assert adapters.begin("a") is None, "it is being read"
    assert adapters.finish(AdapterRead("a")) == []
    adapters.unload("a")
    assert adapters.is_any_leaving
    adapters.free({"a"})
    assert adapters.begin("a") is None and not adapters.is_any_leaving
    adapters.free(set())
    assert loader.removed == []
    assert adapters.take_outcomes() == [AdapterOutcome("a"), AdapterOutcome("a")]
    adapters.unload("b")
    assert not adapters.is_any_leaving, "it was never loaded"


def test_an_adapter_that_is_unloaded_while_it_is_read_is_freed_afterwards() -> None:
    loader = FakeLoader()
    adapters = Adapters(loader)
    adapters.begin("a")
    adapters.unload("a")
    adapters.free(set())
    assert loader.removed == []
    adapters.finish(AdapterRead("a"))
    adapters.free(set())
    assert loader.removed == ["a"] and not adapters.is_any_leaving
    adapters.begin("b")
    adapters.unload("b")
    adapters.finish(AdapterRead("b", problem="It is gone."))
    assert not adapters.is_any_leaving, "there is nothing to free"


def test_engines_without_adapters_and_engines_that_stop_report_an_error() -> None:
    inbox, thread = Inbox(), EngineThread(make_engine())
    thread.start(inbox)
    with pytest.raises(SetupError, match="computes no adapters"):
        thread.load_adapter("a", Path("/x/a")).result(WAIT_SECONDS)
    thread.stop()
    stopping, loader, _, loading = reading()
    threading.Timer(0.1, loader.may_read.set).start()
    stopping.stop()
    with pytest.raises(SetupError):
        loading.result(WAIT_SECONDS)


def test_prompts_of_other_adapters_share_no_prefix() -> None:
    """Neither in the engine's cache nor with a salt that looks like an adapter's."""
    prompt = list(range(97, 97 + 25)) * 4
    jobs = [
        replace(make_job(prompt=prompt, max_tokens=2), adapter=adapter, salt=salt)
        for adapter, salt in (("", ""), ("a", ""), ("b", ""), ("", "a"), ("a", "b"), ("b", "a"), ("a", ""))
    ]
    keys = [job.prefix_salt for job in jobs]
    assert len(set(keys)) == len(keys) - 1 and keys[1] == keys[-1]
