"""Wiring: the models that are served and their names, and closing of loaded models if it fails."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.errors import openai_words
from onward.api.openai.reply import fold_whole
from onward.api.openai.response import Completion
from onward.backends.embedded import EmbeddedBackend
from onward.completions.request import CompletionRequest
from onward.compose import compose, engine, load_tokenizer, served
from onward.engine.thread import EngineThread
from onward.engines.child.supervised import SupervisedEngine
from onward.errors import ModelFolderError, ModelNameError, ModelNotFound, SetupError
from onward.kernels import code, executable_memory
from onward.models.resolve import ResolvedModel
from onward.runtimes.toy.model import ToyModel
from onward.sampling import kernels, self_test
from onward.sampling.self_test import run_self_test
from onward.settings import OPENAI_NAMES, Settings, model_named
from tests.examples import slow_but


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[ToyModel]:
    """The toy models that were closed so far."""
    found: list[ToyModel] = []
    monkeypatch.setattr(ToyModel, "close", lambda model: found.append(model))
    return found


def toy_folder(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "toy.json").write_text('{"blocks": 8, "context_length": 64}', encoding="utf-8")
    return str(folder)


def test_several_models_and_aliases_are_served(tmp_path: Path) -> None:
    other = toy_folder(tmp_path / "other")
    backend = compose(Settings(model=("toy", other), alias=(("davinci-002", "toy"), ("babbage-002", other))))
    try:
        listed = {each.id: each.owned_by for each in backend.models()}
        assert list(listed) == ["toy", "other", "davinci-002", "babbage-002", "gpt-3.5-turbo-instruct"]
        assert listed["babbage-002"] == "onward" and listed["gpt-3.5-turbo-instruct"] == "alias of toy"
        assert all(re.fullmatch("fp_[0-9a-f]{12}", each.fingerprint) for each in backend.served.values())
    finally:
        asyncio.run(backend.aclose())


def served_model(backend: EmbeddedBackend, name: str) -> str:
    """Return the id of the model that answers to `name`."""
    request = check_request({"model": name, "prompt": "a", "max_tokens": 1})
    return asyncio.run(_complete(backend, request)).model


async def _complete(backend: EmbeddedBackend, request: CompletionRequest) -> Completion:
    with openai_words():
        answer = await backend.complete(request)
    try:
        return await fold_whole(answer, request)
    finally:
        await answer.aclose()


def test_openais_names_are_answered_by_the_first_model_unless_a_model_or_alias_has_them(tmp_path: Path) -> None:
    babbage = toy_folder(tmp_path / "babbage-002")
    backend = compose(Settings(model=("toy", babbage), alias=(("davinci-002", babbage),)))
    try:
        assert [served_model(backend, name) for name in OPENAI_NAMES] == ["toy", "babbage-002", "babbage-002"]
    finally:
        backend.close()


@pytest.mark.real
def test_the_built_in_model_says_that_it_answers_in_place_of_another() -> None:
    async def answers(backend: EmbeddedBackend) -> list[str]:
        found = []
        for name in ("storyteller", "davinci-002"):
            answer = await backend.complete(CompletionRequest(model=name, prompt="a", max_tokens=1))
            await answer.aclose()
            found.append(answer.warning)
        return found

    backend = compose(Settings(model=("storyteller",)))
    try:
        own, other = asyncio.run(answers(backend))
    finally:
        backend.close()
    assert own == "" and other.startswith("storyteller, the small built-in model, answers in place of davinci-002.")


def test_openais_names_are_unknown_where_they_are_turned_off() -> None:
    backend = compose(Settings(model=("toy",), openai_names=False))
    try:
        assert [each.id for each in backend.models()] == ["toy"]
        with pytest.raises(ModelNotFound, match="`davinci-002` does not exist"):
            served_model(backend, "davinci-002")
    finally:
        backend.close()


def test_a_folder_of_openais_name_is_that_model_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(model=("toy",), alias=(("babbage-002", "storyteller"),))
    toy_folder(tmp_path / "davinci-002")
    named = [model_named(name, settings) for name in (*OPENAI_NAMES, "other")]
    assert named == ["toy", "davinci-002", "storyteller", "other"]


@pytest.mark.parametrize(
    ("alias", "words"),
    [
        (
            ("davinci-002", "nowhere"),
            "davinci-002=nowhere names a model that is not served. The served models are: toy",
        ),
        (("toy", "toy"), "The alias 'toy' is already the name of a model"),
    ],
)
def test_an_alias_that_cannot_be_served_is_an_error(alias: tuple[str, str], words: str, closed: list[ToyModel]) -> None:
    with pytest.raises(SetupError, match=re.escape(words)):
        compose(Settings(model=("toy",), alias=(alias,)))
    assert closed == []  # nothing was loaded


def test_two_models_of_one_name_are_an_error(tmp_path: Path, closed: list[ToyModel]) -> None:
    one, other = toy_folder(tmp_path / "1" / "same"), toy_folder(tmp_path / "2" / "same")
    with pytest.raises(SetupError, match="Two models are named 'same'"):
        compose(Settings(model=(one, other)))
    assert closed == []  # nothing was loaded


def test_a_model_listed_twice_is_an_error_before_any_is_loaded(closed: list[ToyModel]) -> None:
    with pytest.raises(SetupError, match=r"^The model 'toy' is listed twice; pass it once\.$"):
        compose(Settings(model=("toy", "storyteller", "toy")))
    assert closed == []


def test_a_model_that_does_not_exist_is_an_error_before_any_is_loaded(tmp_path: Path, closed: list[ToyModel]) -> None:
    with pytest.raises(ModelNameError):
        compose(Settings(model=("toy", str(tmp_path / "nowhere"))))
    assert closed == []


def test_models_are_closed_if_a_later_one_fails_to_load(tmp_path: Path, closed: list[ToyModel]) -> None:
    small = toy_folder(tmp_path / "small")
    with pytest.raises(SetupError, match="was made for 64"):
        compose(Settings(model=("toy", small), context_length=100))
    assert len(closed) == 1


@pytest.mark.parametrize("process", slow_but(["off"], ["off", "on"]))
def test_engines_are_stopped_if_a_later_model_cannot_be_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: Literal["off", "on"]
) -> None:
    """The first one has begun loading by then."""
    stopped: list[str] = []

    def refuse(found: ResolvedModel, *_: object) -> None:
        if found.id == "other":
            raise ModelFolderError("it has tokens without rows")

    def stop(engine: Any) -> None:
        stopped.append(engine.info.fingerprint)
        stops[type(engine)](engine)

    stops: dict[type, Any] = {kind: kind.stop for kind in (EngineThread, SupervisedEngine)}
    for kind in stops:
        monkeypatch.setattr(kind, "stop", stop)
    monkeypatch.setattr(served, "_require_rows", refuse)
    with pytest.raises(ModelFolderError, match="tokens without rows"):
        compose(Settings(model=("toy", toy_folder(tmp_path / "other")), engine_process=process), own_process=True)
    assert len(stopped) == 2


def test_a_tokenizer_is_loaded_without_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.runtimes.toy.model.ToyModel.__init__", lambda *arguments: pytest.fail("loaded"))
    settings = Settings(model=("toy",), alias=(("davinci-002", "storyteller"),))
    assert load_tokenizer(None, settings).size == 273
    assert load_tokenizer("davinci-002", settings).size > 1000
    with pytest.raises(ModelNameError, match="There is no model named 'nowhere'"):
        load_tokenizer("nowhere", settings)


def test_memory_that_cannot_be_executed_is_an_error_of_the_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_posix_problem", "_windows_problem"):
        monkeypatch.setattr(executable_memory, name, lambda: "Permission denied")
    monkeypatch.setattr(kernels, "_loaded", [])
    monkeypatch.setattr(code, "_shared", {})
    with pytest.raises(SetupError, match="memory cannot be made executable here"):
        compose(Settings(model=("toy",)))


def test_a_machine_that_samples_differently_says_so_and_has_another_fingerprint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fingerprint_and_notes() -> tuple[str, list[str]]:
        notes: list[str] = []
        monkeypatch.setattr(engine, "_tested_sampling", cache(run_self_test))
        backend = compose(Settings(model=("toy",)), notes.append)
        try:
            return backend.served["toy"].fingerprint, notes
        finally:
            asyncio.run(backend.aclose())

    usual, notes = fingerprint_and_notes()
    assert not [line for line in notes if "other numbers" in line]
    monkeypatch.setattr(self_test, "EXPECTED", "0123456789abcdef")
    other, notes = fingerprint_and_notes()
    assert other != usual
    assert [line for line in notes if line.startswith("The sampling kernels compute other numbers here")]
