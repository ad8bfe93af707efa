"""The results of a loaded model, compared with the unpaged graph; its memory; refusals."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from subprocess import run

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from onward.engine.model import Row
from onward.errors import MemoryTooSmall, ModelFolderError, SetupError
from onward.model_files.openvino_ir import WEIGHTS
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.openvino.load import load_model
from onward.runtimes.openvino.model import OpenVINOModel
from onward.runtimes.openvino.window import BLOCK_TOKENS
from tests.examples import slow_but
from tests.runtimes.openvino.tiny_ir import Shape, write_folder

pytestmark = pytest.mark.slow  # an extra, whose import alone takes a third of a second

EXACT = RuntimeOptions(precision="exact")
HEADS = [
    Shape(),
    Shape(tied=True),
    Shape(weights="int4"),
    Shape(weights="int4", tied=True),
    Shape(weights="f16", head="bias"),
    Shape(head="scaled"),
    Shape(head="softcap", tied=True),
    Shape(weights="f32", heads=2, kv_heads=2, hidden=32),
]


def unpaged(folder: Path, tokens: list[int]) -> NDArray[np.float32]:
    """Return the logits of every token, computed by the graph as it was exported."""
    core = ov.Core()
    exact = {
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "KV_CACHE_PRECISION": "f32",
    }
    request = core.compile_model(folder / "openvino_model.xml", "CPU", exact).create_infer_request()
    length = len(tokens)
    attended = np.tril(np.ones((length, length)))
    rows = []
    for end in range(1, length + 1):  # the tiny graph has no causal mask of its own: feed one token at a time
        outputs = request.infer(
            {
                "input_ids": np.array([[tokens[end - 1]]], np.int64),
                "attention_mask": attended[end - 1 : end, :end].astype(np.int64),
                "position_ids": np.array([[end - 1]], np.int64),
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        rows.append(outputs[0][0, -1].copy())
    return np.stack(rows)


@pytest.mark.parametrize(
    "shape", slow_but(HEADS[4:5], HEADS), ids=lambda shape: f"{shape.weights}-{shape.head}-tied={shape.tied}"
)
def test_paged_logits_equal_those_of_the_exported_graph(shape: Shape, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shape)
    tokens = np.random.default_rng(0).integers(0, shape.vocab, 45).tolist()
    model = load_model(folder, EXACT)
    expected = unpaged(folder, tokens)
    whole = model.evaluate([Row(0, tokens, 0, [5, 3], 45)]).copy()
    np.testing.assert_allclose(whole, expected, atol=5e-3)
    model.evaluate([Row(0, tokens[:40], 0, [9, 1], 0)])
    steps = [model.evaluate([Row(0, [tokens[at]], at, [9, 1], 1)])[0].copy() for at in range(40, 45)]
    np.testing.assert_allclose(np.stack(steps), expected[40:], atol=5e-3)
    model.close()


def test_outputs_come_in_row_and_position_order(tiny: OpenVINOModel) -> None:
    first, second = [1, 2, 3, 4], [9, 8, 7]
    one = tiny.evaluate([Row(0, first, 0, [0], 4)]).copy()
    two = tiny.evaluate([Row(1, second, 0, [1], 3)]).copy()
    both = tiny.evaluate([Row(0, first, 0, [0], 2), Row(1, second, 0, [1], 0), Row(1, second, 0, [1], 3)])
    assert both.dtype == np.float32
    np.testing.assert_array_equal(both, np.concatenate([one[2:], two]))


def test_a_step_without_outputs_returns_no_logits_but_writes_keys(tiny: OpenVINOModel) -> None:
    tokens = list(range(40))
    expected = tiny.evaluate([Row(0, tokens, 0, [0, 1], 1)]).copy()
    assert tiny.evaluate([Row(0, tokens[:32], 0, [2, 3], 0)]).shape == (0, tiny.vocab_size)
    np.testing.assert_array_equal(tiny.evaluate([Row(0, tokens[32:], 32, [2, 3], 1)]), expected)


def test_logits_are_a_view_of_the_runtimes_memory(tiny: OpenVINOModel) -> None:
    logits = tiny.evaluate([Row(0, [1, 2, 3], 0, [0], 3)])
    assert not logits.flags.owndata
    assert logits.base is not None


@pytest.mark.slow
def test_buffers_grow_with_the_step(tiny_folder: Path) -> None:
    model = load_model(tiny_folder)
    tokens = np.random.default_rng(2).integers(0, 300, 500).tolist()
    rows = [Row(q, tokens, 0, range(16 * q, 16 * q + 16), 500) for q in range(4)]
    together = model.evaluate(rows).copy()
    assert together.shape == (2000, 300)
    np.testing.assert_array_equal(model.evaluate(rows[3:]), together[1500:])
    model.close()


def test_a_block_table_that_is_too_short_is_refused_before_anything_runs(tiny: OpenVINOModel) -> None:
    with pytest.raises(RuntimeError, match="2 blocks for 40 tokens"):
        tiny.evaluate([Row(0, list(range(40)), 0, [1], 1)])


def test_a_closed_model_raises(tiny_folder: Path) -> None:
    model = load_model(tiny_folder)
    model.close()
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.evaluate([Row(0, [1], 0, [0], 1)])


def kv_bytes(model: OpenVINOModel) -> int:
    """Bytes of the KV cache, the scratch block included."""
    return sum(int(tensor.byte_size) for _, tensor in model._open()[1].tensors)


def block_bytes(model: OpenVINOModel) -> int:
    return kv_bytes(model) // (model.blocks + 1)


def test_a_model_has_the_sizes_of_its_files(tiny: OpenVINOModel) -> None:
    assert (tiny.vocab_size, tiny.context_length, tiny.notes) == (300, 512, [])
    shape = Shape()
    values = 2 * shape.layers * shape.kv_heads * shape.head_dim * BLOCK_TOKENS
    assert block_bytes(tiny) == values * 2, "keys and values are float16"


@pytest.mark.slow
def test_the_scratch_block_is_not_counted(tiny_folder: Path) -> None:
    small = load_model(tiny_folder, RuntimeOptions(context_length=256))
    wanted = block_bytes(small) * 9
    model = load_model(tiny_folder, RuntimeOptions(kv_memory=wanted, context_length=256))
    assert (model.blocks, kv_bytes(model)) == (8, wanted)


@pytest.mark.slow
def test_little_kv_memory_lowers_the_context_with_a_note(tiny_folder: Path, tiny: OpenVINOModel) -> None:
    model = load_model(tiny_folder, RuntimeOptions(kv_memory=block_bytes(tiny) * 11))
    assert model.context_length == 320
    assert any("from 512 to 320 tokens" in note for note in model.notes)


def test_too_little_kv_memory_is_an_error_with_numbers(tiny_folder: Path, tiny: OpenVINOModel) -> None:
    with pytest.raises(MemoryTooSmall, match=r"needs \S+ KiB for 256 tokens and \S+ KiB for its whole context of 512"):
        load_model(tiny_folder, RuntimeOptions(kv_memory=block_bytes(tiny) * 8))


def test_a_longer_context_than_the_model_was_made_for_is_an_error(tiny_folder: Path) -> None:
    with pytest.raises(SetupError, match="made for 512"):
        load_model(tiny_folder, RuntimeOptions(context_length=1024))


@pytest.mark.slow
def test_a_context_length_that_no_config_states_is_assumed_with_a_note(tiny_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "copy"))
    (folder / "config.json").unlink()
    model = load_model(folder)
    assert model.context_length == 2048
    assert "config.json" in model.notes[0]


@pytest.mark.slow
def test_the_context_length_may_be_in_a_nested_config(tiny_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "copy"))
    (folder / "config.json").write_text(json.dumps({"text_config": {"n_positions": 384}}), encoding="utf-8")
    assert load_model(folder).context_length == 384


@pytest.mark.slow
def test_the_fingerprint_follows_weights_and_precision(tiny_folder: Path, tmp_path: Path) -> None:
    again = load_model(tiny_folder).fingerprint
    other = load_model(write_folder(tmp_path / "other", Shape(seed=8))).fingerprint
    exact = load_model(tiny_folder, EXACT).fingerprint
    assert again == load_model(tiny_folder).fingerprint
    assert len({again, other, exact}) == 3


@pytest.mark.parametrize("name", ["openvino_model.xml", "openvino_model.bin"])
def test_a_missing_file_is_named(tiny_folder: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "copy"))
    (folder / name).unlink()
    with pytest.raises(ModelFolderError, match=f"has no {name}"):
        load_model(folder)


@pytest.mark.parametrize(("name", "content"), [("openvino_model.xml", b"<net"), ("openvino_model.bin", b"short")])
def test_a_broken_file_is_a_broken_folder(tiny_folder: Path, tmp_path: Path, name: str, content: bytes) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "copy"))
    (folder / name).write_bytes(content)
    with pytest.raises(ModelFolderError, match="cannot read"):
        load_model(folder)


def test_a_broken_config_is_a_broken_folder(tiny_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "copy"))
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelFolderError, match=r"config\.json is not valid JSON"):
        load_model(folder)


def test_a_graph_without_a_cache_is_refused_with_the_export_command(tmp_path: Path) -> None:
    ids = ov.opset13.parameter([-1, -1], np.int64, name="input_ids")
    ids.output(0).set_names({"input_ids"})
    logits = ov.opset13.result(ov.opset13.convert(ids, "f32"))
    ov.save_model(ov.Model([logits], [ids], "no decoder"), tmp_path / "openvino_model.xml")
    with pytest.raises(ModelFolderError, match="text-generation-with-past"):
        load_model(tmp_path)


def test_a_graph_without_token_inputs_is_refused(tmp_path: Path) -> None:
    image = ov.opset13.parameter([1, 3, 8, 8], np.float32, name="pixels")
    image.output(0).set_names({"pixels"})
    ov.save_model(
        ov.Model([ov.opset13.result(ov.opset13.relu(image))], [image], "image"),
        tmp_path / "openvino_model.xml",
    )
    with pytest.raises(ModelFolderError, match="no input_ids"):
        load_model(tmp_path)


def test_importing_onward_and_options_does_not_import_openvino() -> None:
    code = "import sys, onward, onward.runtimes.base; sys.exit('openvino' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="files that are mapped cannot be written to there")
def test_weights_that_are_written_to_change_no_answer(tmp_path: Path) -> None:
    model = load_model(write_folder(tmp_path / "m", Shape()), EXACT)
    row = Row(0, [1, 2, 3], 0, [0], 1)
    model.evaluate([row])
    with (tmp_path / "m" / WEIGHTS).open("r+b") as file:
        file.write(bytes(64))
    with pytest.raises(RuntimeError, match=r"openvino_model\.bin was written to while"):
        model.evaluate([row])
    model.close()


@pytest.mark.slow
def test_no_telemetry_is_imported_and_the_converter_stays_importable() -> None:
    code = (
        "import sys, onward.runtimes.openvino.load\n"
        "assert 'openvino' in sys.modules\n"
        "assert not any('telemetry' in name for name in sys.modules)\n"
        "import openvino.tools.ovc"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads the resident size from proc")
def test_memory_grows_only_with_the_blocks_in_use(tiny_folder: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from onward.engine.model import Row
from onward.runtimes.openvino.load import load_model
from onward.runtimes.base import RuntimeOptions
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
load_model(Path({str(tiny_folder)!r})).close()
before = resident()
model = load_model(Path({str(tiny_folder)!r}), RuntimeOptions(kv_memory=1 << 30))
assert model.blocks * 32 > 1 << 20, model.blocks
assert resident() - before < 100 << 20, resident() - before
"""
    assert run([sys.executable, "-c", code], check=False).returncode == 0
