"""Draft models, from settings to the engine: which model drafts for which, what is refused, and that no byte
changes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.reply import fold_whole
from onward.backends.embedded import EmbeddedBackend
from onward.completions.plan import ServedModel
from onward.compose import compose, spare, worker
from onward.compose.backend import start_engine
from onward.compose.drafts import draft_of, draft_words, require_predictor, with_drafts
from onward.compose.engine import EngineConfig, load_models
from onward.engine import draft_budget
from onward.engine_load import EngineLoad
from onward.engines.cluster.config import parse_config
from onward.engines.cluster.engine import ClusterEngine
from onward.engines.cluster.members import Members
from onward.errors import ModelFolderError, SetupError
from onward.models.resolve import resolve
from onward.settings import Settings
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.mtp import predicting_layer, write_predicting_folder
from tests.checkpoints.tiny import write_tiny
from tests.engines.cluster.local_transport import LocalReplica, LocalTransport
from tests.examples import slow_but
from tests.runtimes.native.test_adapters import write_adapter
from tests.toy_backend import backend_of, let_steps_count_the_same

UPSTREAM = "there=vllm+http://127.0.0.1:1"
ASKED: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": True, "logprobs": 2}


def words(**changes: Any) -> dict[str, str]:
    return draft_words(Settings(**{"model": ("a", "b"), **changes}))


def test_a_draft_model_is_for_the_model_that_is_named_or_for_the_first() -> None:
    assert words() == {}
    assert words(draft=(("", "small"),)) == {"a": "small"}
    assert words(draft=(("b", "small"), ("", "tiny"))) == {"b": "small", "a": "tiny"}
    assert words(draft=(("tuned", "small"),), lora=(("tuned", "/x"),)) == {"tuned": "small"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"draft": (("c", "small"),)},
            "--draft c=… names a model that is not served. The models are: a, b.",
        ),
        (
            {"draft": (("", "small"), ("a", "tiny"))},
            "a has two draft models, small and tiny: pass --draft once for it.",
        ),
        (
            {"draft": (("", "small"),), "model": (UPSTREAM,)},
            "--draft is for models that Onward itself computes, and there is computed by another program.",
        ),
        (
            {"draft": (("", "small"),), "speculation": "off"},
            "--speculation off turns all drafts off, those of --draft too: leave out one.",
        ),
    ],
)
def test_draft_settings_that_cannot_apply_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError) as refused:
        words(**changes)
    assert str(refused.value) == message


@pytest.mark.parametrize("model", ["storyteller", "toy"])
def test_a_model_with_other_tokens_is_refused_and_both_are_named(model: str) -> None:
    other = "toy" if model == "storyteller" else "storyteller"
    with pytest.raises(SetupError) as refused:
        compose(Settings(model=(model,), draft=(("", other),))).close()
    assert str(refused.value).startswith(f"{other} cannot draft for {model}, because its tokenizer is another one (")


def test_a_base_and_its_adapters_have_one_draft_model_and_no_byte_changes(tmp_path: Path) -> None:
    base = str(write_tiny(tmp_path / "base.gguf", "llama"))
    lora = tuple((name, str(write_adapter(tmp_path / name, "llama", seed))) for seed, name in enumerate("ab", 1))
    settings = Settings(model=(base,), lora=lora, kv_memory=8_000_000, engine_process="off")

    def answers(settings: Settings) -> list[Any]:
        backend = compose(settings)
        assert len({model.engine for model in backend.served.values()}) == 1

        async def run() -> list[Any]:
            fields = {"prompt": "abc", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "logprobs": 2}
            requests = [check_request({"model": name, **fields}) for name in ("base", "a", "b")]
            found = [await fold_whole(await backend.complete(each), each) for each in requests]
            await backend.aclose()
            return [each.choices for each in found]

        return asyncio.run(run())

    assert answers(replace(settings, draft=(("", base),))) == answers(settings)
    with pytest.raises(SetupError, match="base and a have one engine, and so one draft model"):
        other = str(write_tiny(tmp_path / "other.gguf", "llama"))
        compose(replace(settings, draft=(("", base), ("a", other))))
    with pytest.raises(SetupError, match=r"base\+a cannot draft for base, because it has an adapter"):
        compose(replace(settings, draft=(("", f"{base}+{tmp_path / 'a'}"),)))


def test_a_model_that_a_program_computes_has_no_draft_model(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama")
    settings = Settings(model=(str(tmp_path / "m"),), draft=(("", "toy"),), engine=(("", "vllm"),))
    with pytest.raises(SetupError, match=r"^--draft is for models that Onward itself computes, and .*m is computed by"):
        compose(settings)


@pytest.fixture(autouse=True)
def always_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drafts pay in this process, and in those of engines, which run the end of this module."""
    let_drafts_pay(monkeypatch)
    monkeypatch.setattr(spare, "WORKER", (sys.executable, "-m", __name__))
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def let_drafts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drafts of short completions be affordable, and pay however busy the machine is."""
    monkeypatch.setattr(draft_budget, "MAX_LOSS_FRACTION", 1000.0)
    let_steps_count_the_same(monkeypatch)


async def answers(backend: EmbeddedBackend) -> tuple[list[object], EngineLoad]:
    """The choices of two requests, greedy and sampled, and the engine's load after them."""
    found: list[object] = []
    for temperature in (0.0, 1.0):
        fields = {**ASKED, "model": next(iter(backend.served)), "temperature": temperature, "seed": 5}
        request = check_request(fields, profile="default")
        found.append((await fold_whole(await backend.complete(request), request)).choices)
    [load] = backend.load().values()
    return found, load


def asked(settings: Settings, *, own_process: bool = False) -> tuple[list[object], EngineLoad]:
    async def ask() -> tuple[list[object], EngineLoad]:
        backend = compose(settings, own_process=own_process)
        try:
            return await answers(backend)
        finally:
            await backend.aclose()

    return asyncio.run(ask())


@pytest.mark.parametrize("model", slow_but(["toy"], ["toy", "storyteller"]))
def test_law_2_answers_have_the_same_bytes_with_a_draft_model(model: str) -> None:
    plain, before = asked(Settings(model=(model,)))
    drafted, load = asked(Settings(model=(model,), draft=(("", model),)))
    assert drafted == plain
    assert before.draft_seconds == 0.0 < load.draft_seconds
    assert load.drafts.model_accepted > 0, "also where it is as slow as the model, it is tried"


@pytest.mark.parametrize(("model", "draft", "is_said"), [("storyteller", "toy", False), ("toy", "storyteller", True)])
def test_a_draft_model_that_reads_more_than_its_model_is_noted(model: str, draft: str, is_said: bool) -> None:
    config = EngineConfig.create(replace(resolve(model), draft=resolve(draft)), Settings())
    notes: list[str] = []
    load_models(config, notes.append).close()
    note = (
        f"{draft} reads more bytes per token than {model}, so its drafts save no time: choose a smaller model of the "
    )
    assert [each for each in notes if "reads" in each] == [note + "same family for --draft."] * is_said


@pytest.mark.slow
def test_in_a_process_of_its_own_an_engine_has_its_draft_model() -> None:
    plain, _ = asked(Settings(model=("storyteller",)))
    drafted, load = asked(Settings(model=("storyteller",), draft=(("", "storyteller"),)), own_process=True)
    assert drafted == plain
    assert load.process is not None and load.drafts.model_accepted > 0


def test_a_configuration_for_another_process_names_the_draft_model(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small/toy.json").write_text(json.dumps({"blocks": 32, "context_length": 64}), encoding="utf-8")
    backend = compose(Settings(model=("toy",), draft=(("", str(tmp_path / "small")),)))
    backend.close()
    [model] = backend.served.values()
    assert model.found is not None and model.found.draft is not None
    config = EngineConfig.decode(EngineConfig.create(model.found, Settings()).encode())
    assert config.draft is not None and config.draft.model_id == "small"
    assert [each.path for each in config.all_files()] == [resolve("toy").path, tmp_path / "small"]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "draft"), [("ir", "llama"), ("llama", "ir"), ("ir", "ir")])
@pytest.mark.parametrize("own_process", [False, True])
def test_models_of_openvino_draft_and_are_drafted_for(
    model: str, draft: str, own_process: bool, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    from tests.runtimes.openvino.tiny_ir import Shape
    from tests.runtimes.openvino.tiny_ir import write_folder as write_ir

    metadata, _ = write_folder(tmp_path / "llama", "llama")
    write_ir(tmp_path / "ir", Shape(vocab=len(metadata["tokenizer.ggml.tokens"])))
    shutil.copy(tmp_path / "llama/tokenizer.json", tmp_path / "ir")
    settings = Settings(model=(str(tmp_path / model),), kv_memory=8_000_000)
    plain, _ = asked(settings, own_process=own_process)
    drafted, load = asked(replace(settings, draft=(("", str(tmp_path / draft)),)), own_process=own_process)
    assert drafted == plain
    assert load.drafts.model_accepted + load.drafts.model_rejected > 0


@pytest.mark.slow
def test_a_replica_of_a_cluster_has_its_draft_model() -> None:
    async def answered(**engine: str) -> tuple[object, EngineLoad]:
        [config] = parse_config({"model": [{"model": "toy", **engine}]}, "cluster.toml")
        with ExitStack() as on_failure:
            served = await asyncio.to_thread(start_engine, config.settings(), print, on_failure)
            replica = LocalReplica("a", engine=served.engine)
            info = replica.info
            client = ClusterEngine(
                "m", LocalTransport(replica), info, Members("toy", info.context_length), wait_seconds=30.0
            )
            plan_model = ServedModel.create("m", served.tokenizer, info.vocab_size, info.context_length, info.lacks)
            backend = backend_of(client, plan_model)
            request = check_request({**ASKED, "model": "m", "seed": 5}, profile="default")
            choices = (await fold_whole(await backend.complete(request), request)).choices
            await backend.aclose()
        return choices, replica.thread.load

    plain, before = asyncio.run(answered())
    drafted, load = asyncio.run(answered(draft="toy"))
    assert drafted == plain
    assert before.draft_seconds == 0.0 < load.draft_seconds
    assert load.drafts.model_accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize(("model", "draft"), [("qwen35", "qwen35"), ("llama", "qwen35"), ("granitehybrid", "llama")])
def test_law_2_models_whose_sequences_have_states_draft_and_are_drafted_for(
    model: str, draft: str, tmp_path: Path
) -> None:
    base, small = (str(write_tiny(tmp_path / f"{role}.gguf", name)) for role, name in (("m", model), ("d", draft)))
    settings = Settings(model=(base,), kv_memory=4_000_000, engine_process="off", cache_dir=tmp_path)
    plain, _ = asked(settings)
    drafted, load = asked(replace(settings, draft=(("", small),)))
    assert drafted == plain and load.draft_seconds > 0.0
    assert load.drafts.model_accepted > 0 or model != draft


# --- layers of the model itself ----------------------------------------------------------------------------------


@pytest.fixture
def predicting(tmp_path: Path) -> Path:
    return write_predicting_folder(tmp_path / "m", "qwen2, mimo", predicting_layer("qwen2, mimo"))


@pytest.mark.parametrize(
    ("name", "own_process"),
    [("qwen2, mimo", False), pytest.param("qwen2, mimo", True, marks=pytest.mark.slow), ("qwen35", False)],
)
def test_law_2_answers_have_the_same_bytes_where_layers_of_the_model_draft(
    name: str, own_process: bool, tmp_path: Path
) -> None:
    folder = write_predicting_folder(tmp_path / "m", name, predicting_layer(name))
    settings = Settings(model=(str(folder),), kv_memory=8_000_000)
    plain, before = asked(settings, own_process=own_process)
    drafted, load = asked(replace(settings, draft=(("", "mtp"),)), own_process=own_process)
    assert drafted == plain
    assert before.draft_seconds == 0.0 < load.draft_seconds
    assert load.drafts.model_accepted + load.drafts.model_rejected > 0


def test_prefixes_of_a_disk_are_kept_apart_where_blocks_have_hidden_states(predicting: Path, tmp_path: Path) -> None:
    settings = Settings(model=(str(predicting),), kv_memory=8_000_000, prefix_cache_dir=tmp_path / "cache")
    long = {**ASKED, "prompt": "once upon a time there was a fox " * 4, "max_tokens": 20}
    drafting = replace(settings, draft=(("", "mtp"),))

    async def ask(settings: Settings) -> tuple[object, int]:
        backend = compose(settings)
        try:
            request = check_request({**long, "model": "m", "temperature": 0.0, "seed": 5}, profile="default")
            whole = await fold_whole(await backend.complete(request), request)
            [load] = backend.load().values()
            return whole.choices, load.num_cached_tokens
        finally:
            await backend.aclose()

    found = [asyncio.run(ask(each)) for each in (drafting, drafting, settings, settings)]
    assert len({repr(choices) for choices, _ in found}) == 1
    assert [cached > 0 for _, cached in found] == [False, True, False, True]


def test_a_base_and_its_adapters_are_drafted_for_by_its_layers(predicting: Path, tmp_path: Path) -> None:
    found = resolve(str(predicting))
    settings = Settings(model=(str(predicting),), draft=(("", "mtp"),))
    drafted = with_drafts({str(predicting): found}, settings, resolve)[str(predicting)]
    assert drafted.draft is not None and drafted.draft.is_predictor and drafted.draft.path == found.path
    assert draft_of([drafted, replace(found, adapter=tmp_path)]) == drafted.draft
    with pytest.raises(SetupError, match="have one engine, and so one draft model"):
        draft_of([drafted, replace(found, draft=found)])
    config = EngineConfig.decode(EngineConfig.create(drafted, Settings()).encode())
    assert config.options.has_predictor and config.draft is not None and config.draft.is_predictor
    assert not EngineConfig.create(found, Settings()).options.has_predictor


def test_layers_that_predict_are_refused_where_there_are_none(tmp_path: Path) -> None:
    write_folder(tmp_path / "qwen2", "qwen2")
    for model, message in {
        str(tmp_path / "qwen2"): "has no layers that predict several tokens at once, which --draft mtp needs",
        "toy": "--draft mtp is for GGUF and safetensors models with layers that .* and toy is toy: leave it out",
    }.items():
        with pytest.raises((SetupError, ModelFolderError), match=message):
            compose(Settings(model=(model,), draft=(("", "mtp"),), kv_memory=4_000_000)).close()
        with pytest.raises((SetupError, ModelFolderError)):
            require_predictor(resolve(model))


if __name__ == "__main__":  # an engine's process; see `always_pay`
    let_drafts_pay(pytest.MonkeyPatch())
    worker.main()
