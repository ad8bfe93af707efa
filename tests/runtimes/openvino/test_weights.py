"""Requirements of compressed weights: groups of activations that match theirs, and rows short enough not to be
split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from onward.engine.model import Row
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.openvino import load
from onward.runtimes.openvino.invariance import Evaluate, find_window, is_invariant
from onward.runtimes.openvino.load import computes_float32, configuration, load_model
from onward.runtimes.openvino.weights import activation_group, group_long_rows, states_float32
from onward.runtimes.openvino.window import Window
from tests.runtimes.openvino.tiny_ir import Shape, build_model, write_folder

EXACT = RuntimeOptions(precision="exact")
LONG_ROWS = Shape(layers=1, hidden=256, wide=16)
"""Few rows of 4,096 inputs: where oneDNN splits sums among threads."""


class Core:
    """Replaces OpenVINO's: states the default of its CPU plugin."""

    def __init__(self, group: int) -> None:
        self._group = group

    def get_property(self, device: str, name: str) -> int:
        assert (device, name) == ("CPU", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
        return self._group


class PrecisionCore:
    """Replaces OpenVINO's on a processor with bfloat16."""

    def get_property(self, device: str, name: str) -> ov.Type:
        assert (device, name) == ("CPU", "INFERENCE_PRECISION_HINT")
        return ov.Type.bf16


@pytest.mark.parametrize(
    ("shape", "group"),
    [
        (Shape(), 64),
        (Shape(weights="f16"), 64),
        (Shape(weights="int4", group=32), None),
        (Shape(weights="int4", group=64), 64),
        (Shape(weights="int4", group=64, tied=True), 64),
        (Shape(weights="int4", group=16), 64),
    ],
    ids=lambda value: f"{value.weights}-{value.group}" if isinstance(value, Shape) else str(value),
)
def test_activations_are_quantised_in_groups_that_divide_those_of_the_weights(shape: Shape, group: int | None) -> None:
    assert activation_group(Core(32), build_model(shape)) == group


def test_a_processor_with_another_default_keeps_it() -> None:
    assert activation_group(Core(2**64 - 1), build_model(Shape())) is None


def test_a_group_that_the_model_states_is_kept() -> None:
    model = build_model(Shape())
    model.set_rt_info("0", ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    assert activation_group(Core(32), model) is None


def test_only_long_rows_are_grouped() -> None:
    short, long = build_model(Shape(layers=1)), build_model(LONG_ROWS)
    before = len(short.get_ops())
    group_long_rows(short)
    group_long_rows(long)
    assert len(short.get_ops()) == before
    weights = [op.output(0).get_partial_shape() for op in long.get_ops() if op.get_type_name() == "Multiply"]
    grouped = [list(shape.to_shape()) for shape in weights if shape.is_static and len(shape) == 3]
    assert grouped == [[256, 2, 2048]]


def test_groups_of_long_rows_are_those_that_activations_have() -> None:
    model = build_model(Shape(layers=1, hidden=80, wide=18))
    before = len(model.get_ops())
    group_long_rows(model, 64)
    assert len(model.get_ops()) == before, "no part of 1,440 inputs is a multiple of 64"
    group_long_rows(model, 16)
    assert len(model.get_ops()) > before


def test_float32_that_a_model_states_is_seen() -> None:
    model = build_model(Shape(layers=1))
    assert not states_float32(model)
    model.set_rt_info("f32", ["runtime_options", "INFERENCE_PRECISION_HINT"])
    assert states_float32(model)
    assert configuration(RuntimeOptions(), None, in_float32=True)["INFERENCE_PRECISION_HINT"] == "f32"


@pytest.mark.slow
def test_grouped_rows_have_the_same_values_and_stay_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "long", LONG_ROWS)
    compiled: list[ov.CompiledModel] = []
    compile_model = load._compile

    def keep(*arguments: Any) -> ov.CompiledModel:
        compiled.append(compile_model(*arguments))
        return compiled[-1]

    monkeypatch.setattr(load, "_compile", keep)
    rows = [Row(0, list(range(40)), 0, [0, 1], 40)]
    grouped = load_model(folder, EXACT).evaluate(rows).copy()
    monkeypatch.setattr(load, "group_long_rows", lambda model, block: None)
    whole = load_model(folder, EXACT).evaluate(rows)
    np.testing.assert_allclose(grouped, whole, atol=1e-4)
    for graph in compiled:
        infos = [op.get_rt_info() for op in graph.get_runtime_model().get_ops()]
        layers = [info for info in infos if info["layerType"].astype(str) == "FullyConnected"]
        assert {info["runtimePrecision"].astype(str) for info in layers} == {"i8"}


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_in_float32_long_rows_are_invariant_on_any_number_of_threads(tmp_path: Path, threads: int) -> None:
    folder = write_folder(tmp_path / "long", LONG_ROWS)
    model = load_model(folder, RuntimeOptions(precision="exact", threads=threads))
    lone = load_model(folder, RuntimeOptions(precision="exact", threads=1))
    assert is_invariant(model.evaluate, model.vocab_size)
    assert model.fingerprint == lone.fingerprint
    rows = [Row(0, list(range(7)), 0, [0], 7)]
    assert model.evaluate(rows).tobytes() == lone.evaluate(rows).tobytes()


@pytest.mark.slow
def test_a_window_makes_a_model_invariant_whose_sums_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "group_long_rows", lambda model, block: None)
    found: list[Window | None] = []

    def find(evaluate: Callable[[Window], Evaluate], vocab_size: int) -> Window | None:
        found.append(find_window(evaluate, vocab_size))
        return found[-1]

    monkeypatch.setattr(load, "find_window", find)
    model = load_model(write_folder(tmp_path / "long", LONG_ROWS), EXACT)
    assert is_invariant(model.evaluate, model.vocab_size)
    assert len(found) == 1
    assert model.notes == []


@pytest.mark.parametrize(
    ("limit", "precision", "group"),  # https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
    [
        ("AVX2", "f32", "0"),
        ("avx512_core", "f32", "0"),
        ("AVX2_VNNI", "f32", "64"),
        ("AVX512_CORE_VNNI", "f32", "64"),
        ("AVX512_CORE_BF16", None, "64"),
        ("DEFAULT", None, "64"),
        ("", None, "64"),
    ],
)
def test_a_limit_of_instructions_leaves_only_types_that_it_has_products_for(
    monkeypatch: pytest.MonkeyPatch, limit: str, precision: str | None, group: str
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    model = build_model(Shape(layers=1))
    core = PrecisionCore()
    in_float32 = computes_float32(core, model, RuntimeOptions())
    config = configuration(RuntimeOptions(), 64, in_float32=in_float32)
    assert config.get("INFERENCE_PRECISION_HINT") == precision
    assert config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == group
