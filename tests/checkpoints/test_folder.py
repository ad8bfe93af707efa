"""Folders of safetensors files: the same log-probabilities as the reference's, and a clear error for each broken
file."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onward
from onward.checkpoints import folder as folder_module
from onward.checkpoints import tensor as tensor_module
from onward.checkpoints.folder import read_folder
from onward.checkpoints.rope_scaling import rope_metadata
from onward.checkpoints.safetensors import read_safetensors
from onward.checkpoints.tensor import Tensor, require_possible_shapes
from onward.checkpoints.types import BFLOAT16
from onward.errors import CheckpointError, ModelFolderError
from onward.model_files.safetensors import SafetensorsFiles
from onward.models.check import check_model
from onward.models.resolve import resolve
from onward.runtimes.table import runtime_of
from tests.checkpoints.hugging_face import CONFIGS, codegen_parts, hugging_face_name, safetensors_bytes, write_folder
from tests.checkpoints.making import FUZZ, with_bytes
from tests.checkpoints.test_architectures import check_logits
from tests.checkpoints.tiny import HEADS
from tests.examples import slow_but
from tests.models.doors import refusal, shown

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "short_factor": [0.0] * 8, "long_factor": [1.0] * 8,
    "original_max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(["gpt-oss", "gpt2", "gemma4"], CONFIGS))
def test_log_probabilities_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    check_logits(SafetensorsFiles(tmp_path / "m"), *write_folder(tmp_path / "m", name), cache=tmp_path)


OLDER: dict[str, tuple[str, dict[str, Any], str]] = {
    "OPT with a norm too many": ("opt", {"do_layer_norm_before": False}, "a tensor 'output_norm.weight', which Onward"),
    "OPT with other embeddings": ("opt", {"word_embed_proj_dim": 32}, r"token_embd.weight' .* instead of \[30, 32\]"),
    "OPT 350M with the usual norms": ("opt, norms after", {"do_layer_norm_before": True}, "no tensor 'output_norm.we"),
    "OPT 350M with embeddings of another size": (
        "opt, norms after",
        {"word_embed_proj_dim": 48},
        r"instead of \[30, 48\]",
    ),
    "no last norm": ("opt", {"_remove_final_layer_norm": True}, "states 'True' as '_remove_final_layer_norm', with"),
    "Falcon-RW": ("falcon", {"alibi": True, "parallel_attn": False}, "uses ALiBi positions .'alibi'., which Onward"),
    "Falcon's layers one after the other": ("falcon", {"parallel_attn": False}, "states 'False' as 'parallel_attn'"),
    "Falcon with another activation": ("falcon", {"activation": "relu"}, "states 'relu' as 'activation', with which"),
    "Falcon with one norm of two": ("falcon, two norms", {"num_ln_in_parallel_attn": 1}, "'blk.0.ffn_norm.weight', wh"),
    "Phi with norms of queries": ("phi2", {"qk_layernorm": True}, "uses norms of queries and keys .'qk_layernorm'"),
    "limits of OLMoE": ("olmoe", {"clip_qkv": 8.0}, "uses clamped queries .'attention.clamp_kqv'"),
}


@pytest.mark.parametrize("name", OLDER)
def test_what_is_not_computed_of_older_models_is_refused_by_name(name: str, tmp_path: Path) -> None:
    kind, stated, words = OLDER[name]
    write_folder(tmp_path / "m", kind)
    change(tmp_path / "m", **stated)
    with pytest.raises(ModelFolderError, match=words):
        check_model(tmp_path / "m")


def test_older_models_without_biases_and_weights_of_norms_are_computed(tmp_path: Path) -> None:
    """As OPT's class may be."""
    metadata, tensors = write_folder(tmp_path / "m", "opt")
    change(tmp_path / "m", enable_bias=False, layer_norm_elementwise_affine=False)
    stored = read_safetensors(tmp_path / "m/model.safetensors")
    kept = {name: each.floats().reshape(each.shape) for name, each in stored.items() if each.shape[1:]}
    (tmp_path / "m/model.safetensors").write_bytes(safetensors_bytes(kept))
    plain = {name: array for name, array in tensors.items() if array.ndim > 1}
    norms = {name: np.ones_like(array) for name, array in tensors.items() if name.endswith("norm.weight")}
    check_logits(SafetensorsFiles(tmp_path / "m"), metadata, plain | norms, cache=tmp_path)


def test_a_codegen_that_states_the_size_of_heads_has_each_eighth_of_them_together(tmp_path: Path) -> None:
    """As CodeGen 2 1B and 3.7B do."""
    metadata, tensors = write_folder(tmp_path / "m", "gptj, codegen")
    path, size = tmp_path / "m/model.safetensors", metadata["gptj.embedding_length"] // HEADS
    stored = {name: each.floats().reshape(each.shape) for name, each in read_safetensors(path).items()}
    joined = {name: array for name, array in codegen_parts(tensors, 8).items() if ".attn_qkv." in name}
    path.write_bytes(safetensors_bytes(stored | {hugging_face_name(each, "gptj"): joined[each] for each in joined}))
    change(tmp_path / "m", head_dim=size)
    check_logits(SafetensorsFiles(tmp_path / "m"), metadata, tensors, cache=tmp_path)


@pytest.mark.slow
def test_layers_of_mellum_with_a_window_have_a_base_of_their_own(tmp_path: Path) -> None:
    metadata, tensors = write_folder(tmp_path / "m", "mellum")
    rules = json.loads((tmp_path / "m/config.json").read_text(encoding="utf-8"))["rope_parameters"]
    rules["sliding_attention"]["rope_theta"] = 300.0
    change(tmp_path / "m", rope_parameters=rules, mlp_layer_types=["sparse"] * 5)
    metadata["mellum.rope.freq_base_local"] = 300.0
    check_logits(SafetensorsFiles(tmp_path / "m"), metadata, tensors, cache=tmp_path)
    rules["sliding_attention"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}
    change(tmp_path / "m", rope_parameters=rules)
    with pytest.raises(ModelFolderError, match="positions of layers with a window by 'linear'"):
        check_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("gemma3", "gemma3", marks=pytest.mark.slow),
        pytest.param("mistral3", "mistral3", marks=pytest.mark.slow),
        pytest.param("qwen3_5_moe", "qwen35moe", marks=pytest.mark.slow),
        pytest.param("qwen2_5_vl", "qwen2vl", marks=pytest.mark.slow),
        pytest.param("qwen3_vl", "qwen3vl", marks=pytest.mark.slow),
        pytest.param("qwen3_vl_moe", "qwen3vlmoe", marks=pytest.mark.slow),
        pytest.param("llama4", "llama4", marks=pytest.mark.slow),
        ("mistral3", "llama, untied"),
    ],
)
@pytest.mark.parametrize(
    "prefix", slow_but(["model.language_model."], ["language_model.model.", "model.language_model."])
)
def test_only_the_text_model_of_a_multimodal_model_is_computed(
    name: str, text: str, prefix: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    metadata, tensors = write_folder(folder, text)
    own = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if own["model_type"] != "ministral3":  # all others are the default of their text model
        del own["model_type"]
    wrapped = {"model_type": name, "tie_word_embeddings": own.pop("tie_word_embeddings"), "text_config": own}
    (folder / "config.json").write_text(json.dumps({**wrapped, "vision_config": {"hidden_size": 8}}), encoding="utf-8")
    stored = {key.replace("model.", prefix, 1): array for key, array in arrays_of(folder).items()}
    stored |= {
        f"{part}.linear.weight": np.ones((3, 4), np.float32)
        for part in ("vision_tower", "vision_model", "multi_modal_projector")
    }
    (folder / "model.safetensors").write_bytes(safetensors_bytes(stored))
    assert "reads images, too" in shown(folder)["notes"][0]
    check_logits(SafetensorsFiles(folder), metadata, tensors, cache=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("qwen2_5_vl", "qwen2vl"), ("qwen2_vl", "qwen2vl, first")])
def test_a_folder_of_qwen2_vl_need_not_have_the_configuration_of_texts_apart(
    kind: str, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    metadata, tensors = write_folder(folder, name)
    change(folder, model_type=kind, vision_config={"hidden_size": 8})
    stored = arrays_of(folder) | {"visual.merger.mlp.0.weight": np.ones((3, 4), np.float32)}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(stored))
    assert "reads images, too" in shown(folder)["notes"][0]
    check_logits(SafetensorsFiles(folder), metadata, tensors, cache=tmp_path)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (None, "no tensor 'blk.1.ffn_act.eps'"),
        ((2,), r"'blk.1.ffn_act.eps' has the shape \[2\] instead of \[1\]"),
    ],
)
def test_numbers_of_activations_are_tensors_of_a_folder(
    shape: tuple[int, ...] | None, words: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, "apertus")
    stored = arrays_of(tmp_path)
    del stored["model.layers.1.mlp.act_fn.eps"]
    if shape is not None:
        stored["model.layers.1.mlp.act_fn.eps"] = np.ones(shape, np.float32)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(stored))
    with pytest.raises(ModelFolderError, match=words):
        check_model(tmp_path)


@pytest.mark.slow
def test_experts_of_qwen3_vl_may_have_inputs_last(tmp_path: Path) -> None:
    """As transformers holds them; those that are published have inputs first."""
    folder = tmp_path / "m"
    metadata, tensors = write_folder(folder, "qwen3vlmoe")
    stored = {
        name: np.ascontiguousarray(array.swapaxes(1, 2)) if ".mlp.experts." in name else array
        for name, array in arrays_of(folder).items()
    }
    (folder / "model.safetensors").write_bytes(safetensors_bytes(stored))
    check_logits(SafetensorsFiles(folder), metadata, tensors, cache=tmp_path)


def test_a_model_has_no_more_tensors_than_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "m"
    write_folder(folder, "llama, untied", num_files=2)
    count = len(read_folder(folder).tensors)
    monkeypatch.setattr(folder_module, "MAX_TENSORS", count)
    assert len(read_folder(folder).tensors) == count
    monkeypatch.setattr(folder_module, "MAX_TENSORS", count - 1)
    assert f"(the model has more than {count - 1} tensors)" in refusal(folder)


def test_square_experts_of_qwen3_vl_do_not_say_which_side_is_first(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    write_folder(folder, "qwen3vlmoe")
    change(folder, moe_intermediate_size=64)
    stored = {
        name: np.ones((8, 64, 64 if "down" in name else 128), np.float32) if ".mlp.experts." in name else array
        for name, array in arrays_of(folder).items()
    }
    (folder / "model.safetensors").write_bytes(safetensors_bytes(stored))
    assert "ffn_down_exps.weight' has the shape [8, 64, 64], which does not say" in refusal(folder)


def arrays_of(folder: Path) -> dict[str, Any]:
    """The tensors of a folder, as they are stored."""
    return {
        name: tensor.floats().reshape(tensor.shape)
        for name, tensor in read_safetensors(folder / "model.safetensors").items()
    }


@pytest.mark.slow
def test_a_folder_of_gpt_oss_need_not_round_the_limits_of_its_yarn_ramp(tmp_path: Path) -> None:
    metadata, tensors = write_folder(tmp_path / "m", "gpt-oss")
    rules = json.loads((tmp_path / "m/config.json").read_text(encoding="utf-8"))["rope_scaling"]
    change(tmp_path / "m", rope_scaling=rules | {"truncate": False})
    metadata["gpt-oss.rope.scaling.truncate"] = False
    check_logits(SafetensorsFiles(tmp_path / "m"), metadata, tensors, cache=tmp_path)


@pytest.mark.slow
def test_layers_of_olmo_3_with_a_window_have_a_base_of_their_own(tmp_path: Path) -> None:
    metadata, tensors = write_folder(tmp_path / "m", "olmo2, window")
    rules = json.loads((tmp_path / "m/config.json").read_text(encoding="utf-8"))["rope_scaling"]
    both = {"full_attention": {**rules, "rope_theta": 1e4}, "sliding_attention": {"rope_theta": 300.0}}
    change(tmp_path / "m", rope_parameters=both, rope_scaling=None)
    metadata["olmo2.rope.freq_base_local"] = 300.0
    check_logits(SafetensorsFiles(tmp_path / "m"), metadata, tensors, cache=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_is_read_as_it_is(dtype: str, tmp_path: Path) -> None:
    check_logits(SafetensorsFiles(tmp_path / "m"), *write_folder(tmp_path / "m", "llama", dtype=dtype), cache=tmp_path)


def test_several_files_are_one_model(tmp_path: Path) -> None:
    made = write_folder(tmp_path / "m", "gpt2", num_files=3)
    (tmp_path / "m/consolidated.safetensors").write_bytes(b"another copy of the weights, which the list does not name")
    check_logits(SafetensorsFiles(tmp_path / "m"), *made, cache=tmp_path)


def test_llama_3_scales_its_positions(tmp_path: Path) -> None:
    metadata, tensors = write_folder(tmp_path / "m", "llama")
    change(tmp_path / "m", rope_scaling=LLAMA3)
    waves = 2 * np.pi * 5000.0 ** (np.arange(0, 16, 2) / 16)
    smooth = (32 / waves - 1) / 3
    between = 1 / ((1 - smooth) / 8 + smooth)  # as in Llama 3.1's own code, by cases
    tensors["rope_freqs.weight"] = np.where(waves < 32 / 4, 1, np.where(waves > 32, 8, between)).astype(np.float32)
    check_logits(SafetensorsFiles(tmp_path / "m"), metadata, tensors, cache=tmp_path)


@pytest.mark.parametrize(
    ("stated", "magnitude"),
    [({}, 0.1 * np.log(4) + 1), ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0), ({"attention_factor": 2}, 2.0)],
)
def test_yarn_states_its_magnitude_in_three_ways(stated: dict[str, float], magnitude: float) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, **stated}
    found = rope_metadata({"rope_scaling": scaling, "max_position_embeddings": 512}, {}, "config.json")
    assert found["rope.scaling.yarn_attn_factor"] == pytest.approx(magnitude)


def test_a_folder_is_served_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path / "cache"))
    write_folder(tmp_path / "Tiny-0.5B", "llama")
    found = resolve(str(tmp_path / "Tiny-0.5B"))
    assert (found.id, found.files.format) == ("Tiny-0.5B", "safetensors")
    facts = found.files.facts()
    assert (facts["context_length"], facts["kind"], runtime_of(found.files).name) == (512, "llama", "native")
    with onward.Onward(model=str(found.path), kv_memory="8MB") as client:
        assert client.completions.create(prompt="abc", max_tokens=3).usage.completion_tokens == 3


def change(folder: Path, **changed: Any) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changed), encoding="utf-8")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_type": "dbrx"}, "model_type 'dbrx'.*It computes .*cohere2"),
        ({"model_type": None}, "model_type 'None'"),
        ({"model_type": [[]]}, r"model_type '\[\[\]\]'"),
        ({"head_dim": 1 << 17, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "larger heads than any model"),
        ({"num_attention_heads": 1, "hidden_size": 1 << 17, "rope_scaling": LLAMA3}, "larger heads than any model"),
        ({"partial_rotary_factor": 1e308}, r"rotates 1e\+308 of each head"),
        ({"rope_scaling": {**LLAMA3, "factor": 0}}, "not completely .its numbers are impossible"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 0.5}}, "not completely .its numbers are impossible"),
        ({"rope_scaling": LONG}, "not completely .a factor is impossible"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq'.*as a GGUF file"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantised by 'mxfp4'"),
        ({"swiglu_limit": 5.0}, "states '5.0' as 'swiglu_limit' instead of 7.0"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"hidden_act": "relu6"}, "activation 'relu6'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0, "alpha": 9.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "axial", "factor": 4.0}}, "'axial'"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 8}}, "not completely"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}}, "YaRN, but its numbers are impossible"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "much"}}, "not completely"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "not completely"),
        ({"rope_scaling": [1]}, "not an object"),
        ({"scale_attn_weights": False}, "attention without a scale"),
        ({"num_attention_heads": 0}, "cannot compute"),
        ({"num_attention_heads": "four"}, "cannot compute"),
        ({"num_hidden_layers": 1}, "does not compute for 'llama'"),
        ({"num_hidden_layers": 3}, "no tensor 'blk.2"),
        ({"hidden_size": 32}, "has the shape"),
        ({"max_position_embeddings": 1e40}, "cannot compute"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_folder(tmp_path, "llama")
    change(tmp_path, **changed)
    with pytest.raises(ModelFolderError, match=words):
        check_model(tmp_path)


def _file(header: object, content: bytes = bytes(64)) -> bytes:
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + content


def _entry(**changed: Any) -> dict[str, Any]:
    return {"t": {"dtype": "F32", "shape": [2, 8], "data_offsets": [0, 64], **changed}}


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "cut off": (b"\1\2\3", "cut off after 3 bytes"),
    "endless header": (struct.pack("<Q", 2**62), "a header of"),
    "not JSON": (struct.pack("<Q", 4) + b"{{{{", "no tensors"),
    "deep": (struct.pack("<Q", 200_000) + b"[" * 200_000, "no tensors"),
    "a list": (_file([1]), "no tensors"),
    "integers": (_file(_entry(dtype="I8")), "the type 'I8'"),
    "bytes": (_file(_entry(dtype="U8")), "the type 'U8'"),
    "beyond the end": (_file(_entry(data_offsets=[32, 96])), "not within the file"),
    "backwards": (_file(_entry(data_offsets=[64, 0])), "not within the file"),
    "one over another": (
        _file({**_entry(), "u": {"dtype": "F32", "shape": [1], "data_offsets": [60, 64]}}),
        "tensors that overlap",
    ),
    "negative": (_file(_entry(shape=[-2, -8])), "an impossible shape"),
    "one number": (_file(_entry(shape=[])), "of 64 bytes instead of 4"),
    "many axes": (_file(_entry(shape=[1] * 9)), "an impossible shape"),
    "another size": (_file(_entry(shape=[3, 8])), "64 bytes instead of 96"),
    "endless": (_file(_entry(shape=[2**40, 2**40])), "instead of"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_reported_in_one_message(name: str, tmp_path: Path) -> None:
    content, words = BROKEN[name]
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["gemma", "qwen35", "nemotron_h", "falcon-h1", "stablelm, head norms"])
def test_what_is_changed_when_it_is_read_is_not_larger_than_any_model_has_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are in memory before sizes are checked."""
    write_folder(tmp_path / "m", name)
    read_folder(tmp_path / "m")
    monkeypatch.setattr(tensor_module, "_MAX_CHANGED", 3)
    assert "which no model has" in refusal(tmp_path / "m")


def test_a_model_for_tests_may_have_a_vocabulary_of_short_rows_but_nothing_has_endless_ones() -> None:
    """Published ones (tiny-Qwen3ForCausalLM, tiny-Gemma3) have whole vocabularies of 8 numbers for each token."""
    one = Tensor("model.embed_tokens.weight", (262_144, 8), BFLOAT16, np.zeros(0, np.uint8))
    require_possible_shapes(3 * [one], "m")
    with pytest.raises(CheckpointError, match="which no model has"):
        require_possible_shapes(20 * [one], "m")


def test_a_matrix_has_as_many_rows_as_those_of_models_and_all_of_them_together_too() -> None:
    """Rows are put in order before sizes are checked, which takes 8 bytes for each."""
    empty = np.zeros(0, np.uint8)
    rows = [
        Tensor(f"model.layers.{layer}.self_attn.q_proj.weight", (1 << 20, 64), BFLOAT16, empty) for layer in range(40)
    ]
    experts = [
        Tensor(name, (1 << 20, 64), BFLOAT16, empty)
        for number in range(40)
        for name in (f"model.layers.0.mlp.experts.{number}.up_proj.weight", f"blk.0.ffn_up.{number}.weight")
    ]
    require_possible_shapes([*rows[:32], *experts], "m")
    for tensors in (rows[:33], [Tensor("lm_head.weight", ((1 << 22) + 1, 64), BFLOAT16, empty)]):
        with pytest.raises(CheckpointError, match="which no model has"):
            require_possible_shapes(tensors, "m")


def test_a_decay_too_large_for_a_float_is_infinite(tmp_path: Path) -> None:
    write_folder(tmp_path, "nemotron_h")
    stored = arrays_of(tmp_path)
    name = "backbone.layers.0.mixer.A_log"
    stored[name] = np.full_like(stored[name], 3e38)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(stored))
    assert np.isneginf(read_folder(tmp_path).tensors["blk.0.ssm_a"].floats()).all()


def test_missing_files_are_reported_in_a_sentence(tmp_path: Path) -> None:
    write_folder(tmp_path, "llama", num_files=2)
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFolderError, match=r"no model-00002-of-00002\.safetensors"):
        check_model(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}), encoding="utf-8")
    with pytest.raises(ModelFolderError, match="does not list the files"):
        check_model(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelFolderError, match=r"no tokenizer\.json"):
        check_model(tmp_path)


WHOLE = safetensors_bytes({"a": np.ones((4, 8), np.float32), "b": np.ones(3, np.float32)})


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], None]:
    """Reads bytes as a file with all its tensors; only CheckpointError may be raised."""
    path = tmp_path_factory.mktemp("fuzz") / "m.safetensors"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try:
            found = read_safetensors(path)
        except CheckpointError:
            return
        for tensor in found.values():
            tensor.floats()

    return read


@FUZZ
@given(changes=st.dictionaries(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), max_size=8))
def test_a_file_with_other_bytes_anywhere_never_crashes(
    changes: dict[int, int], reading: Callable[[bytes], None]
) -> None:
    reading(with_bytes(WHOLE, changes))


def test_there_are_norms_per_head_exactly_if_the_configuration_says_so(tmp_path: Path) -> None:
    """StableLM 2 12B has a norm per head. A folder whose config and tensors disagree about them is refused."""
    write_folder(tmp_path, "stablelm, head norms")
    change(tmp_path, qk_layernorm=False)
    assert "attn_q_norm.weight', which Onward does not compute for 'stablelm'" in refusal(tmp_path)
    write_folder(tmp_path, "stablelm")
    change(tmp_path, qk_layernorm=True)
    assert "no tensor 'blk.0.attn_q_norm.weight'" in refusal(tmp_path)
