"""Models that are added, replaced and removed while a server runs: requests finish on the model that they began on, and
a change that fails changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.reply import fold_whole
from onward.api.openai.response import Completion
from onward.backends.base import ModelChange
from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.compose.backend import start_engines
from onward.compose.live_models import EmbeddedLiveModels, open_models
from onward.constraints.process.checker import GrammarChecker, Ticket
from onward.constraints.process.messages import Check
from onward.errors import ModelNameError, Overloaded, SetupError
from onward.runtimes.toy.model import ToyModel
from onward.settings import Settings
from tests.server.fakes import in_loop
from tests.waiting import until

Test = Callable[["Live"], Awaitable[None]]
LONG: dict[str, Any] = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "seed": 5}


async def allow(change: ModelChange) -> None:
    """Permits every change."""


def toy(path: Path, context_length: int = 64) -> Path:
    """A toy model, which is known by its context length."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "toy.json").write_text(json.dumps({"blocks": 32, "context_length": context_length}), encoding="utf-8")
    return path


class Live:
    """A backend of toy models in this process, and what changes them."""

    def __init__(self, **given: Any) -> None:
        self.settings = Settings(**{"engine_process": "off", "openai_names": False, **given})
        self.backend: EmbeddedBackend = compose(self.settings)
        opened = open_models(self.settings, self.backend)
        assert opened is not None
        self.models: EmbeddedLiveModels = opened

    @property
    def served(self) -> dict[str, int]:
        """Context lengths of the models by id, in order."""
        return {id: model.served.context_length for id, model in self.backend.served.items()}

    @property
    def listed(self) -> list[str]:
        return [model.id for model in self.backend.models()]

    async def add(self, name: str | Path, id: str | None = None) -> None:
        await self.models.add(str(name), id, allow)

    async def remove(self, id: str) -> None:
        await self.models.remove(id, allow)

    async def apply(self, **changes: Any) -> ModelChange:
        return await self.models.apply(replace(self.settings, **changes), allow)

    async def complete(self, model: str, **fields: Any) -> Completion:
        fields = {"model": model, "prompt": "a", "max_tokens": 4, **fields}
        request = check_request(fields, profile=self.settings.profile)
        return await fold_whole(await self.backend.complete(request), request)

    async def ended(self) -> None:
        """Wait until no model is still closing."""
        await until(lambda: not self.backend.ending)


def live(test: Test, **given: Any) -> None:
    @in_loop
    async def run() -> None:
        running = Live(**given)
        try:
            await test(running)
        finally:
            await running.backend.aclose()

    run()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Context lengths of the toy models that were closed so far."""
    found: list[int] = []
    close = ToyModel.close

    def closing(model: ToyModel) -> None:
        found.append(model.context_length)
        close(model)

    monkeypatch.setattr(ToyModel, "close", closing)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with two models, and a model outside of it."""
    for name, length in (("folder/one", 64), ("folder/org/two", 96), ("outside", 128)):
        toy(tmp_path / name, length)
    return tmp_path / "folder"


def test_a_model_is_added_and_removed(folder: Path, closed: list[int]) -> None:
    async def test(live: Live) -> None:
        await live.add("one")
        await live.add(folder / "org" / "two", "second")
        assert live.listed == ["toy", "one", "second"] and live.served == {"toy": 2048, "one": 64, "second": 96}
        assert (await live.complete("second")).model == "second"
        shown = [(each.id, each.status, each.source, each.is_added) for each in live.models.models()]
        assert shown[1:] == [
            ("one", "ready", str(folder / "one"), True),
            ("second", "ready", str(folder / "org" / "two"), True),
        ]
        assert not live.models.models()[0].is_added
        await live.remove("one")
        await live.ended()
        assert live.listed == ["toy", "second"] and closed == [64]
        with pytest.raises(ModelNameError, match=r"'secnd' is served\. Did you mean 'second'\?"):
            await live.remove("secnd")
        await live.remove("toy")
        assert (await live.complete("")).model == "second", "the first one that is left is the default"
        with pytest.raises(SetupError, match="only model"):
            await live.remove("second")

    live(test, model=("toy",), model_folder=(folder,), profile="lenient")


def test_requests_end_on_the_model_that_they_began_with(folder: Path, closed: list[int]) -> None:
    async def test(live: Live) -> None:
        undisturbed = (await live.complete("toy", **LONG)).choices[0].text
        running = [asyncio.create_task(live.complete("toy", **LONG)) for _ in range(4)]
        await until(lambda: live.backend.load()["toy"].num_running)
        await live.add("one", "toy")
        (ending,) = (each for each in live.models.models() if each.status == "ending")
        assert (ending.id, ending.num_running, closed) == ("toy", 4, [])
        assert live.listed == ["toy"] and live.served == {"toy": 64}
        assert (await live.complete("toy", max_tokens=2)).usage is not None
        assert [each.choices[0].text for each in await asyncio.gather(*running)] == [undisturbed] * 4
        await live.ended()
        assert closed == [2048]

    live(test, model=("toy",), model_folder=(folder,))


@pytest.mark.slow
def test_no_request_fails_while_a_model_is_replaced_again_and_again(folder: Path, closed: list[int]) -> None:
    async def test(live: Live) -> None:
        done, num_answers = asyncio.Event(), 0

        async def ask(number: int) -> None:
            nonlocal num_answers
            for turn in range(10_000):
                if done.is_set():
                    return
                answer = await live.complete("toy", prompt=f"{number} {turn}", max_tokens=8, ignore_eos=True)
                assert answer.choices[0].finish_reason == "length"
                num_answers += 1

        clients = [asyncio.create_task(ask(number)) for number in range(8)]
        for turn in range(6):
            await live.add(("one", "org/two")[turn % 2], "toy")
            wanted = num_answers + 8
            await until(lambda: num_answers >= wanted)  # noqa: B023
        done.set()
        await asyncio.gather(*clients)
        await live.ended()
        assert sorted(closed) == [64, 64, 64, 96, 96, 2048]

    live(test, model=("toy",), model_folder=(folder,))


def test_a_request_that_is_planned_keeps_its_engine(folder: Path, closed: list[int]) -> None:
    """Between choosing the model and entering the queue, a request passes a thread and the limits of keys."""

    async def test(live: Live) -> None:
        admitting, admitted = asyncio.Event(), asyncio.Event()

        async def admit(_: object) -> None:
            admitting.set()
            await admitted.wait()

        request = check_request({"model": "toy", "prompt": "a", "max_tokens": 3, "ignore_eos": True})
        answering = asyncio.create_task(live.backend.complete(request, admit=admit))
        await admitting.wait()
        await live.add("one", "toy")
        await asyncio.sleep(0.2)
        assert closed == [] and len(live.backend.ending) == 1
        admitted.set()
        answer = await fold_whole(await answering, request)
        assert answer.usage is not None and answer.usage.completion_tokens == 3
        await live.ended()
        assert closed == [2048]

    live(test, model=("toy",), model_folder=(folder,))


def test_a_closed_backend_stops_models_that_are_ending(folder: Path, closed: list[int]) -> None:
    async def test(live: Live) -> None:
        running = asyncio.create_task(live.complete("toy", **LONG | {"max_tokens": 2000}))
        await until(lambda: live.backend.load()["toy"].num_running)
        await live.add("one", "toy")
        await live.backend.aclose()
        with pytest.raises(Overloaded, match="shutting down"):
            await running
        assert sorted(closed) == [64, 2048]

    live(test, model=("toy",), model_folder=(folder,))


OUTSIDE = [
    "../outside", "one/../../outside", "{outside}", "way_out", "inner/toy.json", "/etc", "/etc/passwd", "storyteller",
    "smollm2", "Qwen/Qwen2.5-0.5B", "hf.co/org/name", "ollama:qwen", "http://127.0.0.1:1/model", "~", "one+{outside}",
    "name=vllm+http://127.0.0.1:1", "file:///etc/passwd", "\0", "x" * 256, "loop",
]  # fmt: skip


def test_only_what_lies_in_the_folders_can_be_named(folder: Path, tmp_path: Path) -> None:
    (folder / "way_out").symlink_to(tmp_path / "outside")
    (folder / "inner").mkdir()
    (folder / "inner" / "toy.json").symlink_to(tmp_path / "outside" / "toy.json")
    (folder / "secret").mkdir()
    (folder / "secret" / "model.safetensors").write_bytes(bytes(8))
    (folder / "secret" / "config.json").symlink_to(tmp_path / "secret.json")
    (tmp_path / "secret.json").write_text('{"model_type": "secret"}', encoding="utf-8")
    (folder / "loop").symlink_to(folder / "loop")

    async def test(live: Live) -> None:
        for name in OUTSIDE:
            with pytest.raises(ModelNameError, match=r"There is no .* in the model folders"):
                await live.add(name.format(outside=tmp_path / "outside"))
        for name in ("inner", "secret"):
            with pytest.raises(ModelNameError, match=f"{name} leads to files outside"):
                await live.add(name)
        with pytest.raises(ModelNameError, match=r"Did you mean 'one'\?"):
            await live.add("oone")
        with pytest.raises(SetupError, match="contains no model that Onward can read"):
            await live.add("org")
        assert live.listed == ["toy"]

    live(test, model=("toy",), model_folder=(folder,))


def test_without_folders_nothing_can_be_added(folder: Path) -> None:
    async def test(live: Live) -> None:
        with pytest.raises(ModelNameError, match="without --model-folder"):
            await live.add(folder / "one")

    live(test, model=("toy",))


def test_a_missing_model_folder_and_one_with_a_cluster_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="nowhere is not a folder"):
        compose(Settings(model=("toy",), model_folder=(tmp_path / "nowhere",)))
    with pytest.raises(SetupError, match=r"put models into cluster\.toml"):
        compose(Settings(model_folder=(tmp_path,), cluster="auto"))


def test_a_change_that_cannot_be_made_leaves_everything_as_it_was(folder: Path, closed: list[int]) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "toy.json").write_text('{"blocks": 0, "context_length": 64}', encoding="utf-8")

    async def test(live: Live) -> None:
        before = live.models.models()
        with pytest.raises(SetupError, match="blocks must be a positive integer"):
            await live.add("broken", "toy")
        with pytest.raises(SetupError, match="The alias 'old' is already the name of a model"):
            await live.add("one", "old")

        async def refuse(change: ModelChange) -> None:
            assert str(change) == f"added one ({folder / 'one'})"
            raise Overloaded("no database")

        with pytest.raises(Overloaded, match="no database"):
            await live.models.add("one", None, refuse)
        assert live.models.models() == before and live.listed == ["toy", "old"] and not live.models.is_busy
        assert closed == [64], "what was loaded in vain is freed"

    live(test, model=("toy",), model_folder=(folder,), alias=(("old", "toy"),))


def test_a_load_that_is_cancelled_leaves_no_engine(
    folder: Path, closed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another server takes over meanwhile: this one runs until its last request has ended."""
    loading, may_go_on = threading.Event(), threading.Event()

    def waiting(*given: Any, **more: Any) -> Any:
        loading.set()
        may_go_on.wait(60)
        return start_engines(*given, **more)

    async def test(live: Live) -> None:
        adding = asyncio.create_task(live.add("one"))
        await asyncio.to_thread(loading.wait, 60)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert not live.models.is_busy and closed == []
        may_go_on.set()
        await until(lambda: closed == [64])
        await live.add("one")
        assert live.listed == ["toy", "one"]

    monkeypatch.setattr("onward.compose.live_models.start_engines", waiting)
    live(test, model=("toy",), model_folder=(folder,))


def test_an_id_that_the_settings_give_another_model_is_refused(folder: Path, closed: list[int]) -> None:
    word = str(folder / "org" / "two")

    async def test(live: Live) -> None:
        with pytest.raises(SetupError, match=f"{word} names two models, .*: choose another id"):
            await live.add("one", word)
        assert live.served == {"two": 96} and closed == []
        await live.add("one", str(folder / "org"))
        with pytest.raises(SetupError, match=f"{folder / 'org'} names two models"):
            await live.apply(model=(word, str(toy(folder / "org"))))
        assert list(live.served) == ["two", str(folder / "org")]

    live(test, model=(word,), model_folder=(folder,))


def test_a_model_has_the_engine_that_the_settings_name_for_it(folder: Path) -> None:
    word = str(toy(folder / "Llama-3.1-8B"))

    async def test(live: Live) -> None:
        toy(folder / "Llama-3.1-8B", 96)
        await live.add("Llama-3.1-8B")
        await live.add("one", "Llama-3.1-8B")
        assert live.served == {"Llama-3.1-8B": 64}
        with pytest.raises(SetupError, match="vLLM reads"):
            await live.add("one")

    live(test, model=(word,), model_folder=(folder,), engine=(("", "vllm"), (word, "onward")))


def test_aliases_come_and_go_with_their_model(folder: Path) -> None:
    async def test(live: Live) -> None:
        await live.add("one")
        await live.remove("toy")
        assert live.listed == ["one"]
        await live.add("org/two", "toy")
        assert live.listed == ["one", "toy", "old"]
        assert (await live.complete("old")).model == "toy"

    live(test, model=("toy",), model_folder=(folder,), alias=(("old", "toy"),))


def test_a_constraint_is_checked_again_for_another_model_of_the_same_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[list[str]] = []
    submit = GrammarChecker.submit

    def watched(checker: GrammarChecker, client: str, key: list[str], make: Callable[[], Check]) -> Ticket:
        checked.append(key)
        return submit(checker, client, key, make)

    monkeypatch.setattr(GrammarChecker, "submit", watched)

    async def test(live: Live) -> None:
        for _ in range(2):
            assert (await live.complete("toy", regex="ab", max_tokens=8)).choices[0].text == "ab"
            await live.add("one", "toy")
        assert checked[0] != checked[1]

    live(test, model=("toy",), model_folder=(folder,))


def test_settings_that_are_read_again_add_remove_and_replace(tmp_path: Path, closed: list[int]) -> None:
    paths = {name: toy(tmp_path / name, length) for name, length in (("a", 64), ("b", 96), ("c", 128))}
    a, b, c = map(str, paths.values())

    async def test(live: Live) -> None:
        assert await live.apply() == ModelChange() and closed == []
        change = await live.apply(model=(c, a), alias=(("x", c),))
        assert live.listed == ["c", "a", "x"] and list(live.served) == ["c", "a"]
        assert str(change) == f"added c ({c}); removed b"
        await live.ended()
        assert closed == [96], "what has not changed continues"
        assert (await live.complete(c)).model == "c", "a path of the settings is a name"
        toy(paths["a"], 256)
        os.utime(paths["a"] / "toy.json", ns=(1, 1))
        assert (await live.apply(model=(c, a), alias=(("x", c),))).replaced == (f"a ({a})",)
        assert live.served == {"c": 128, "a": 256}
        change = await live.apply(model=(a, c))
        assert str(change) == "names were changed" and live.listed == ["a", "c"]

    live(test, model=(a, b))


def test_what_was_added_or_removed_stays_so_when_settings_are_read_again(folder: Path, tmp_path: Path) -> None:
    a, b = str(toy(tmp_path / "a")), str(toy(tmp_path / "b"))

    async def test(live: Live) -> None:
        await live.add("one")
        await live.add("org/two", "a")
        await live.remove("b")
        assert str(await live.apply()) == "nothing has changed"
        assert live.served == {"a": 96, "one": 64}
        await live.apply(model=(a, b, str(toy(tmp_path / "one", 160))))
        assert live.served == {"a": 96, "one": 160}, "the settings name this id now"
        await live.apply(model=(b,))
        assert live.served == {"a": 96}, "b stays removed"
        assert [each.is_added for each in live.models.models() if each.status == "ready"] == [True]

    live(test, model=(a, b), model_folder=(folder,))


def test_settings_that_cannot_be_applied_change_nothing(folder: Path, tmp_path: Path) -> None:
    a, b = str(toy(tmp_path / "a")), str(toy(tmp_path / "b"))

    async def test(live: Live) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"model": (a, b, str(tmp_path / "nowhere"))}, "does not exist"),
            ({"model": (b,), "alias": (("x", "nothing"),)}, "The alias x=nothing names a model that is not served"),
            ({"model": (a, b, str(toy(tmp_path / "other" / "a")))}, "Two models are named 'a'"),
            ({"cluster": "auto"}, "name a cluster now"),
            ({"model": (a, a)}, "listed twice"),
        ]
        for changes, words in wrong:
            with pytest.raises(SetupError, match=words):
                await live.apply(**changes)
            assert live.listed == ["a"]
        await live.apply(model=(b,))
        await live.apply(model=(a, b))
        await live.remove("b")
        with pytest.raises(SetupError, match="No model would be left"):
            await live.apply(model=(b,))
        assert live.listed == ["a"]

    live(test, model=(a,))


def test_two_changes_are_made_one_after_the_other(folder: Path) -> None:
    async def test(live: Live) -> None:
        first, second = (asyncio.create_task(live.add(name)) for name in ("one", "org/two"))
        await asyncio.sleep(0)
        assert live.models.is_busy
        await asyncio.gather(first, second)
        assert live.listed == ["toy", "one", "two"]

    live(test, model=("toy",), model_folder=(folder,))


def test_a_draft_model_of_the_settings_is_loaded_with_its_model_and_when_its_file_changes(tmp_path: Path) -> None:
    a, small = (str(toy(tmp_path / name)) for name in ("a", "small"))

    async def changes(live: Live) -> None:
        plain = (await live.complete("a", max_tokens=40, temperature=0)).choices
        assert (await live.apply(model=(a,))) == ModelChange()
        assert (await live.apply(model=(a,), draft=(("", small),))).replaced == (f"a ({a})",)
        found = live.backend.served["a"].found
        assert found is not None and found.draft is not None and found.draft.id == "small"
        assert (await live.complete("a", max_tokens=40, temperature=0)).choices == plain
        assert (await live.apply(model=(a,), draft=(("", small),))) == ModelChange()
        toy(tmp_path / "small", 96)
        assert (await live.apply(model=(a,), draft=(("", small),))).replaced == (f"a ({a})",)
        with pytest.raises(SetupError, match="--draft b=… names a model that is not served"):
            await live.apply(model=(a,), draft=(("b", small),))

    live(changes, model=(a,))
