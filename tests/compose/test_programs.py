"""Which engine computes a model, and what is refused before a program is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.compose import compose, programs
from onward.compose.programs import choose, wanted_engines
from onward.compose.upstreams import fingerprint_of
from onward.engines.programs.kinds import KINDS, ProgramKind
from onward.errors import SetupError
from onward.models.resolve import ResolvedModel, resolve
from onward.settings import Settings
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.making import write_gguf
from tests.engines.upstreams.byte_model import write_byte_model

UPSTREAM = "there=vllm+http://127.0.0.1:1"


def settings(**changes: Any) -> Settings:
    return Settings(**{"model": ("a", "b"), **changes})


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, {}),
        ({"engine": (("", "onward"),)}, {}),
        ({"engine": (("", "vllm"),)}, {"a": "vllm", "b": "vllm"}),
        ({"engine": (("", "vllm"), ("a", "onward"))}, {"b": "vllm"}),
        ({"engine": (("b", "auto"),)}, {"b": "auto"}),
        ({"engine": (("", "vllm"),), "model": ("a", UPSTREAM)}, {"a": "vllm"}),
        ({"engine": (("", "vllm"),), "lora": (("tuned", "/x"),), "model": ("a",)}, {"a": "vllm", "tuned": "vllm"}),
    ],
)
def test_a_model_has_the_engine_that_names_it_or_the_one_for_all(
    changes: dict[str, Any], wanted: dict[str, str]
) -> None:
    assert wanted_engines(settings(**changes)) == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": (("c", "vllm"),)}, "--engine c=… names a model that is not served. The models are: a, b."),
        (
            {"engine": (("there", "vllm"),), "model": (UPSTREAM,)},
            "--engine there=…: there is computed by the server at its address already.",
        ),
        (
            {"model": ("toy",), "tokenizer": (("toy", "toy"),)},
            "--tokenizer toy=… is for a model NAME=KIND+URL that another server computes; every other model has the",
        ),
        ({"engine": (("", "llama.cpp"),), "model": ("toy",)}, "llama-server reads GGUF models; toy is one of"),
        (
            {"engine": (("", "vllm"),), "cluster": "auto"},
            "--engine does not apply to --cluster: the cluster's settings say what computes its models.",
        ),
        (
            {"model": (UPSTREAM,), "tokenizer": (("there", "~nobody-of-this-name/m"),)},
            "'~nobody-of-this-name/m' is not the name of a model and cannot be looked up: ",
        ),
        ({"model": ("toy",), "lora": (("a", "~nobody-of-this-name/a"),)}, "LoRA adapters act on GGUF and safetensors"),
        ({"model": ("toy",), "lora": (("a", "a" * 300 + "@toy"),)}, "LoRA adapters act on GGUF and safetensors"),
    ],
)
def test_engines_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError) as raised:
        compose(settings(**changes))
    assert str(raised.value).startswith(message)


def test_a_folder_without_a_tokenizer_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "llama")
    (tmp_path / "m/tokenizer.json").unlink()
    said: list[str] = []
    with pytest.raises(SetupError, match=r"has no tokenizer\.json: save it there with `AutoTokenizer"):
        compose(settings(model=("toy", str(tmp_path / "m")), engine=((str(tmp_path / "m"), "vllm"),)), said.append)
    assert said == []


def test_a_program_with_an_adapter_is_refused(tmp_path: Path) -> None:
    found = resolved(write_byte_model(tmp_path / "m.gguf"), adapter=tmp_path)
    with pytest.raises(SetupError, match=r"an adapter cannot be used with --engine llama\.cpp"):
        programs.kind_of("llama.cpp", found, print)


def resolved(path: Path, **changes: Any) -> ResolvedModel:
    found = resolve(str(path), must_be_computed=False)
    return ResolvedModel(**{**{name: getattr(found, name) for name in ("files", "id", "source")}, **changes})


@pytest.fixture
def known(tmp_path: Path) -> ResolvedModel:
    return resolved(write_byte_model(tmp_path / "known.gguf"))


@pytest.fixture
def unknown(tmp_path: Path) -> ResolvedModel:
    """A model of an architecture that Onward does not compute."""
    return resolved(write_gguf(tmp_path / "unknown.gguf", {"general.architecture": "mystery"}, {}))


def install(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    there = {kind.title: [kind.word] if kind.word in words else None for kind in KINDS.values()}
    monkeypatch.setattr(ProgramKind, "installed", property(lambda kind: there[kind.title]))


@pytest.mark.parametrize(
    ("installed", "has_gpu", "choice"),
    [
        ((), False, ("onward", "it computes this model")),
        (("llama.cpp", "vllm"), False, ("onward", "it computes this model")),
        (("llama.cpp",), True, ("llama.cpp", "this machine has a GPU, and llama-server is installed")),
        (("vllm",), True, ("onward", "no llama-server is installed for the GPU")),
    ],
)
def test_auto_prefers_what_suits_a_model_that_onward_computes(
    monkeypatch: pytest.MonkeyPatch,
    known: ResolvedModel,
    installed: tuple[str, ...],
    has_gpu: bool,
    choice: tuple[str, str],
) -> None:
    install(monkeypatch, *installed)
    assert choose(known, has_gpu=has_gpu) == choice


def test_auto_chooses_a_program_for_a_model_that_onward_does_not_compute(
    monkeypatch: pytest.MonkeyPatch, unknown: ResolvedModel
) -> None:
    install(monkeypatch, "llama.cpp")
    word, why = choose(unknown, has_gpu=False)
    assert (word, why) == ("llama.cpp", "Onward's own engine does not compute it, and llama-server is installed")
    install(monkeypatch)
    with pytest.raises(SetupError, match=r"mystery.* llama-server may compute it: install it\."):
        choose(unknown, has_gpu=False)


@pytest.mark.parametrize(
    ("word", "variables", "mode"),
    [
        ("vllm", {"VLLM_BATCH_INVARIANT": "1"}, "_batch_invariant"),
        ("vllm", {"VLLM_BATCH_INVARIANT": "0"}, ""),
        ("vllm", {}, ""),
        ("sglang", {"VLLM_BATCH_INVARIANT": "1"}, ""),
    ],
)
def test_fingerprints_say_that_vllm_computes_the_same_bits_in_any_batch(
    word: str, variables: dict[str, str], mode: str
) -> None:
    assert programs._mode(KINDS[word], variables) == mode
    assert fingerprint_of("vllm 0.32.0 m /m", mode).startswith(f"fp_vllm{mode}_")
