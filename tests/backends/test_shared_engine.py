"""The engine of several models: an adapter is freed with the last model that has it, the engine with the last model."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from onward.backends.shared_engine import SharedEngine
from onward.errors import EngineStopped, SetupError
from tests.backends.scripted_engine import ScriptedEngine
from tests.waiting import PATIENCE_SECONDS, wait_for


class AdaptableEngine(ScriptedEngine):
    """Implements AdaptableClient: `changes` are what it was asked for, `stop` too."""

    def __init__(self) -> None:
        super().__init__(lambda job: [])
        self.changes: list[str] = []
        self.problem: Exception | None = None
        self.is_reading = False
        self.loading: Future[None] = Future()

    def load_adapter(self, adapter: str, path: Path) -> Future[None]:
        self.changes.append(f"load {adapter} from {path.name}")
        future = self.loading = Future()
        if isinstance(self.problem, EngineStopped):
            raise self.problem
        if self.problem is not None:
            future.set_exception(self.problem)
        elif not self.is_reading:
            future.set_result(None)
        return future

    def unload_adapter(self, adapter: str) -> None:
        self.changes.append(f"unload {adapter}")

    def stop(self) -> None:
        if not self.num_stops:
            self.changes.append("stop")
        super().stop()
        if not self.loading.done():
            self.loading.set_exception(SetupError("The engine was stopped."))


def test_what_the_last_model_has_used_is_freed() -> None:
    client = AdaptableEngine()
    engine = SharedEngine(client)
    assert client.num_starts == 1
    engine.use()
    for name in ("one", "copy"):
        engine.use("a", Path(name))
    engine.use("b", Path("two"))
    engine.leave("a")
    assert client.changes == ["load a from one", "load a from copy", "load b from two"]
    engine.leave("a")
    engine.leave()
    assert client.changes[3:] == ["unload a"]
    engine.leave("b")
    assert client.changes[4:] == ["stop"], "the engine frees all it has"


def test_an_adapter_that_cannot_be_loaded_is_not_in_use() -> None:
    client = AdaptableEngine()
    engine = SharedEngine(client)
    engine.use()
    for problem in (SetupError("It does not fit."), EngineStopped()):
        client.problem = problem
        with pytest.raises(type(problem)):
            engine.use("a", Path("one"))
    client.problem = None
    engine.use("a", Path("one"))
    engine.leave("a")
    engine.leave()
    assert client.changes[-2:] == ["unload a", "stop"]


def test_an_engine_does_not_stay_for_an_adapter_that_is_being_loaded() -> None:
    client = AdaptableEngine()
    engine = SharedEngine(client)
    engine.use()
    client.is_reading = True
    with ThreadPoolExecutor(1) as pool:
        using = pool.submit(engine.use, "a", Path("one"))
        wait_for(lambda: bool(client.changes), "the load")
        engine.leave()
        changes = list(client.changes)
        client.stop()
        with pytest.raises(SetupError, match="was stopped"):
            using.result(PATIENCE_SECONDS)
    assert changes == ["load a from one", "stop"]


def test_an_engine_on_another_server_takes_no_adapters() -> None:
    client = ScriptedEngine(lambda job: [])
    engine = SharedEngine(client)
    engine.use()
    with pytest.raises(SetupError, match="computes no adapters"):
        engine.use("a", Path("one"))
    engine.leave()
    assert client.num_stops == 1
