"""Adapters that are loaded and unloaded while a server runs, in the engine of their base."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onward.backends.base import ModelChange
from onward.errors import ModelNameError, SetupError
from tests.checkpoints.mtp import predicting_layer, write_predicting_gguf
from tests.checkpoints.tiny import write_tiny
from tests.compose.test_live_models import LONG, OUTSIDE, Live, allow, live, toy
from tests.runtimes.native.test_adapters import write_adapter

Test = Callable[[Live], Awaitable[None]]
ASKED: dict[str, Any] = {"prompt": "abc cab", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with adapters of the base, which is next to it."""
    found = tmp_path / "folder"
    found.mkdir()
    write_tiny(tmp_path / "base.gguf", "llama")
    for seed, name in enumerate(("one", "two", "three"), 1):
        write_adapter(found / f"{name}.gguf", "llama", seed)
    return found


def adapted(test: Test, folder: Path, **given: Any) -> None:
    """Run a test with the base as the only model, if no other ones are given."""
    base = str(folder.parent / "base.gguf")
    live(test, **{"model": (base,), "model_folder": (folder,), "kv_memory": 8_000_000, "threads": 1, **given})


async def load(live: Live, name: str, path: str | Path, base: str | None = None, *, in_place: bool = False) -> None:
    await live.models.load_adapter(name, str(path), base, allow, in_place=in_place)


async def answer(live: Live, model: str) -> tuple[str, str | None]:
    found = await live.complete(model, **ASKED)
    return found.choices[0].text, found.system_fingerprint


def adapters_in_memory(live: Live) -> int:
    """How many tapes the base's engine has for adapters."""
    engine = live.backend.served["base"].engine
    return sum(adapter != "" for adapter in engine.engine.model._tapes)  # type: ignore[attr-defined]


def test_adapters_are_loaded_and_unloaded(folder: Path) -> None:
    answers: dict[str, tuple[str, str | None]] = {}

    async def alone(live: Live) -> None:
        for name in live.served:
            answers[name] = await answer(live, name)

    for name in ("one", "two"):
        adapted(alone, folder, lora=((name, str(folder / f"{name}.gguf")),))
    assert len(set(answers.values())) == 3

    async def test(live: Live) -> None:
        await load(live, "one", "one.gguf")
        await load(live, "two", folder / "two.gguf", "base")
        assert live.listed == ["base", "one", "two"]
        assert [each.parent for each in live.backend.models()] == ["", "base", "base"]
        assert {model.engine for model in live.backend.served.values()} == {live.backend.served["base"].engine}
        found = await asyncio.gather(*(answer(live, name) for name in answers))
        assert dict(zip(answers, found, strict=True)) == answers
        sources = {each.id: (each.source, each.is_added) for each in live.models.models()}
        assert sources["two"] == (str(folder / "two.gguf"), True)
        await live.models.unload_adapter("one", allow)
        await live.ended()
        assert live.listed == ["base", "two"] and await answer(live, "two") == answers["two"]
        with pytest.raises(ModelNameError, match=r"'tow' is not loaded\. Did you mean 'two'\?"):
            await live.models.unload_adapter("tow", allow)
        with pytest.raises(ModelNameError, match="'base' is not loaded"):
            await live.models.unload_adapter("base", allow)
        await live.remove("two")
        await live.ended()
        await load(live, "one", "one.gguf")
        assert await answer(live, "one") == answers["one"]
        assert adapters_in_memory(live) == 1

    adapted(test, folder)


def test_requests_finish_with_an_adapter_that_is_unloaded_or_replaced(folder: Path) -> None:
    async def test(live: Live) -> None:
        await load(live, "a", "one.gguf")
        fields = {**LONG, "max_tokens": 60, "prompt": "abc"}
        undisturbed = (await live.complete("a", **fields)).choices[0].text
        for change in ("unload", "replace"):
            running = [asyncio.create_task(live.complete("a", **fields)) for _ in range(3)]
            while not live.backend.served["a"].answers:
                await asyncio.sleep(0)
            if change == "unload":
                await live.models.unload_adapter("a", allow)
                assert live.listed == ["base"]
            else:
                await load(live, "a", "two.gguf", in_place=True)
                assert (await live.complete("a", **fields)).choices[0].text != undisturbed
            assert [each.choices[0].text for each in await asyncio.gather(*running)] == [undisturbed] * 3
            await live.ended()
            await load(live, "a", "one.gguf", in_place=True)
            await live.ended()
        assert (await live.complete("a", **fields)).choices[0].text == undisturbed
        await answer(live, "base")
        assert adapters_in_memory(live) == 1

    adapted(test, folder)


def test_nothing_is_kept_of_what_was_read_to_check_an_adapter(folder: Path) -> None:
    async def test(live: Live) -> None:
        await load(live, "a", "one.gguf")
        assert (await answer(live, "a"))[0]
        assert not any("_checkpoint" in vars(each.found.files) for each in live.models._entries)

    adapted(test, folder)


def test_one_adapter_under_two_names_is_in_memory_once(folder: Path) -> None:
    async def test(live: Live) -> None:
        (folder / "copy.gguf").write_bytes((folder / "one.gguf").read_bytes())
        await load(live, "a", "one.gguf")
        await load(live, "b", "copy.gguf")
        assert adapters_in_memory(live) == 1
        assert await answer(live, "a") == await answer(live, "b")
        await live.models.unload_adapter("a", allow)
        await live.ended()
        assert (await answer(live, "b"))[0] and adapters_in_memory(live) == 1

    adapted(test, folder)


def test_only_what_lies_in_the_folders_can_be_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_adapter(tmp_path / "outside", "llama", 9)
    (folder / "way_out").symlink_to(tmp_path / "outside")
    (folder / "inner").mkdir()
    (tmp_path / "secret.json").write_text('{"secret": 1}', encoding="utf-8")
    (folder / "inner" / "adapter_config.json").symlink_to(tmp_path / "secret.json")
    (folder / "closed").mkdir()
    iterdir = Path.iterdir

    def closed(path: Path) -> Iterator[Path]:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", closed)
    names = [name.format(outside=tmp_path / "outside") for name in OUTSIDE]

    async def test(live: Live) -> None:
        for name in (*names, "way_out", "https://huggingface.co/org/adapter", "org/adapter", "file:///etc/passwd"):
            with pytest.raises(ModelNameError, match=r"There is no .* in the model folders"):
                await load(live, "a", name)
        with pytest.raises(ModelNameError, match="inner leads to files outside of the model folders"):
            await load(live, "a", "inner")
        with pytest.raises(SetupError, match="closed cannot be read: Permission denied"):
            await load(live, "a", "closed")
        assert live.listed == ["base"]

    adapted(test, folder)

    async def without_folders(live: Live) -> None:
        with pytest.raises(ModelNameError, match="without --model-folder"):
            await load(live, "a", folder / "one.gguf")

    adapted(without_folders, folder, model_folder=())


def test_what_cannot_be_loaded_changes_nothing(folder: Path, tmp_path: Path) -> None:
    write_adapter(folder / "gpt2.gguf", "gpt2", 1)
    (folder / "broken.gguf").write_bytes(b"GGUF")
    toy(tmp_path / "toy")
    alias = (("old", "base"),)

    async def test(live: Live) -> None:
        await load(live, "one", "one.gguf")
        before = live.models.models()
        for name, path, base, words in (
            ("a", "gpt2.gguf", None, "was made for 'gpt2', not for 'llama'"),
            ("a", "broken.gguf", None, "broken"),
            ("a", "one.gguf", "bsae", r"'bsae' is served\. Did you mean 'base'\?"),
            ("a", "one.gguf", "one", "No model with the id 'one'"),
            ("a", "one.gguf", "toy", "act on GGUF and safetensors models|computes no adapters"),
            ("one", "two.gguf", None, "has been loaded already: pass 'load_inplace'"),
            ("base", "two.gguf", None, "is not an adapter"),
            ("old", "two.gguf", None, "The alias 'old' is already the name of a model"),
        ):
            with pytest.raises(SetupError, match=words):
                await load(live, name, path, base)
        with pytest.raises(SetupError, match="is not an adapter"):
            await load(live, "base", "two.gguf", in_place=True)

        async def refuse(change: ModelChange) -> None:
            assert str(change) == f"added two ({folder / 'two.gguf'})"
            raise SetupError("No.")

        with pytest.raises(SetupError, match="No"):
            await live.models.load_adapter("two", "two.gguf", None, refuse, in_place=False)
        assert live.models.models() == before
        await answer(live, "one")
        assert adapters_in_memory(live) == 1

    base = str(folder.parent / "base.gguf")
    adapted(test, folder, model=(base, str(tmp_path / "toy")), alias=alias)


def test_a_base_stays_while_it_has_adapters(folder: Path, tmp_path: Path) -> None:
    toy(folder / "toy")

    async def test(live: Live) -> None:
        await load(live, "one", "one.gguf")
        for change in (live.remove("base"), live.add("toy", "base")):
            with pytest.raises(SetupError, match=r"base has adapters: unload them first \(one\)"):
                await change
        with pytest.raises(SetupError, match=r"base has adapters: unload them first \(one\)"):
            await live.apply(model=(str(folder / "toy"),))
        await live.models.unload_adapter("one", allow)
        await live.apply(model=(str(folder / "toy"),))
        assert live.listed == ["toy"]

    adapted(test, folder)


def test_settings_that_are_read_again_load_adapters_into_the_engine_that_runs(folder: Path) -> None:
    one, two = (("one", str(folder / "one.gguf")), ("two", str(folder / "two.gguf")))

    async def test(live: Live) -> None:
        engine = live.backend.served["base"].engine
        before = await answer(live, "one")
        assert str(await live.apply(lora=(one, two))) == f"added two ({folder / 'two.gguf'})"
        assert {model.engine for model in live.backend.served.values()} == {engine}
        await live.apply(lora=(two,))
        await live.ended()
        assert live.listed == ["base", "two"]
        write_adapter(folder / "two.gguf", "llama", 7)
        changed = await answer(live, "two")
        assert str(await live.apply(lora=(two,))) == f"replaced two ({folder / 'two.gguf'})"
        assert await answer(live, "two") != changed
        await live.apply(lora=(one,))
        assert await answer(live, "one") == before
        again = write_tiny(folder.parent / "again.gguf", "llama")
        again.replace(folder.parent / "base.gguf")  # the same bytes in another file
        await live.apply(lora=(one,))
        assert live.backend.served["base"].engine is not engine
        assert live.backend.served["base"].engine is live.backend.served["one"].engine
        assert await answer(live, "one") == before

    adapted(test, folder, lora=(one,))


def test_an_adapter_joins_the_engine_of_a_base_that_drafts_for_itself(folder: Path) -> None:
    base = str(folder.parent / "base.gguf")

    async def test(live: Live) -> None:
        engine = live.backend.served["base"].engine
        plain = await answer(live, "base")
        await load(live, "one", "one.gguf")
        assert live.backend.served["one"].engine is engine
        assert await answer(live, "one") != plain == await answer(live, "base")

    adapted(test, folder, draft=(("", base),))


def test_a_base_and_its_adapters_are_loaded_again_where_another_model_is_to_draft_for_it(folder: Path) -> None:
    base, one = str(folder.parent / "base.gguf"), ("one", str(folder / "one.gguf"))

    async def test(live: Live) -> None:
        engine, before = live.backend.served["base"].engine, await answer(live, "one")
        await live.apply(lora=(one,), draft=(("", base),))
        assert live.backend.served["base"].engine is live.backend.served["one"].engine is not engine
        assert await answer(live, "one") == before
        await load(live, "two", "two.gguf")
        with pytest.raises(SetupError, match="base has adapters: unload them first"):
            await live.apply(lora=(one,), draft=())

    adapted(test, folder, lora=(one,))


def test_an_engine_in_which_layers_of_a_model_draft_is_not_one_in_which_all_of_it_does(folder: Path) -> None:
    base = str(write_predicting_gguf(folder.parent / "base.gguf", "qwen35", predicting_layer("qwen35")))
    lora = tuple((name, str(write_adapter(folder / name, "qwen35", seed))) for seed, name in enumerate("ab", 1))
    of_layers = (("", "mtp"), ("a", "mtp"))

    async def test(live: Live) -> None:
        engine = live.backend.served["base"].engine
        await live.apply(lora=lora[:1], draft=of_layers)
        assert live.backend.served["a"].engine is engine
        with pytest.raises(SetupError, match="a and b have one engine, and so one draft model: pass --draft once"):
            await live.apply(lora=lora, draft=(*of_layers, ("b", base)))
        other = str(toy(folder / "toy"))
        await live.apply(model=(other,), lora=(("b", f"{folder / 'b'}@{base}"),), draft=(("b", base),))
        assert live.listed == ["toy", "b"]
        assert live.backend.served["b"].engine is not engine

    adapted(test, folder, draft=(("", "mtp"),))
