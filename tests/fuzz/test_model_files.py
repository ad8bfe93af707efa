"""Random files with layers that predict several tokens, with latent attention, and in FP8: hostile sizes, names, shapes
and scales. Each is read, or refused in a sentence that names it, without much memory; what is read is computed."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onward.checkpoints.architectures import architecture_of
from onward.checkpoints.notes import size_facts
from onward.checkpoints.predictions import with_prediction
from onward.checkpoints.read import read_checkpoint
from onward.engine.model import Row
from onward.errors import ModelFolderError, SetupError
from onward.model_files.base import ModelFiles
from onward.model_files.gguf import GGUFFiles
from onward.model_files.safetensors import SafetensorsFiles
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from tests.checkpoints.float8 import LAYOUTS, convert
from tests.checkpoints.making import Stored, floats, write_gguf
from tests.checkpoints.mtp import predicting_layer, write_predicting_folder
from tests.checkpoints.tiny import tiny
from tests.examples import examples

NUM_FILES, NUM_COMPUTED = examples(600), examples(60)
MAX_KIB = 200_000
"""By which the memory of the process may grow in all."""
MAX_SPARSE_BYTES = 1 << 36
"""Of a tensor that is as large as its shape says: zeros, which take no space on the disk."""
FILES = (
    "qwen35", "qwen35moe", "qwen3next", "deepseek2", "deepseek2, joined", "deepseek2, groups",
    "deepseek2, groups of sigmoids", "deepseek2, dense", "glm4moe", "bailingmoe2, groups",
)  # fmt: skip
FOLDERS = (
    "qwen2, mimo", "qwen35", "qwen3next", "deepseek2, glm", "deepseek2, groups of sigmoids, joined", "glm4moe",
)  # fmt: skip
SIZES = (0, 1, 2, 3, 7, 15, 16, 17, 24, 40, 48, 63, 64, 65, 96, 4095, 4096, 4097, 1 << 20, (1 << 31) - 1, 1 << 31)
ODD: tuple[object, ...] = (-1, -64, 1 << 40, 1 << 64, 0.5, 1e300, True, None, "x", "16", [], [1], [16] * 3, {"a": 1})
"""In config.json, too."""
PARTS = (
    "nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm", "nextn.embed_tokens",
    "nextn.shared_head_head", "nextn", "attn_k_b", "attn_v_b", "attn_kv_b", "attn_kv_a_mqa", "attn_kv_a_norm",
    "attn_q_a", "attn_q_b", "attn_q_a_norm", "attn_k_rope", "exp_probs_b", "ffn_gate_inp", "ffn_up_exps", "attn_norm",
)  # fmt: skip
NAMES = (
    "mtp.fc", "mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.layers.0.self_attn.q_proj", "mtp.layers.999.mlp.gate",
    "mtp.layers.0", "mtp.", "model.mtp.fc", "model.mtp_layers.0.input_proj", "model.mtp_layers.7.final_layernorm",
    "model.layers.3.eh_proj", "model.layers.3.shared_head.head", "model.layers.999.enorm",
    "model.layers.3.embed_tokens",
    "model.layers.0.self_attn.kv_b_proj", "model.layers.1.self_attn.kv_a_proj_with_mqa", "model.layers.4.hnorm",
    "model.layers.0.self_attn.q_a_layernorm", "model.layers.2.mlp.gate.e_score_correction_bias",
)  # fmt: skip
KEYS = (
    "block_count", "nextn_predict_layers", "attention.kv_lora_rank", "attention.q_lora_rank", "attention.key_length",
    "attention.value_length", "attention.key_length_mla", "attention.value_length_mla", "rope.dimension_count",
    "attention.head_count", "attention.head_count_kv", "expert_count", "expert_used_count", "expert_group_count",
    "expert_group_used_count", "expert_shared_count", "leading_dense_block_count", "expert_feed_forward_length",
    "embedding_length", "context_length",
)  # fmt: skip
CONFIG_KEYS = (
    "num_hidden_layers", "num_nextn_predict_layers", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "num_attention_heads", "num_key_value_heads", "n_routed_experts",
    "num_experts_per_tok", "n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "mlp_layer_types",
    "moe_intermediate_size", "hidden_size", "max_position_embeddings", "head_dim", "rope_scaling", "rope_parameters",
    "topk_method", "routed_scaling_factor", "norm_topk_prob", "partial_rotary_factor",
)  # fmt: skip


def of_other_shape(draw: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """As many numbers in another shape, fewer of them, or as many as no memory has."""
    axis = draw.randrange(len(shape))
    sizes = shape[axis] // 2, 0, 1, draw.choice(SIZES), draw.choice(SIZES)
    cut = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    return draw.choice([shape[::-1], (1, *shape), (*shape, 1), (int(np.prod(shape)),), *cut])


def file_of(draw: random.Random, path: Path) -> Path:
    """A GGUF file with other metadata, or other names and shapes of tensors."""
    name = draw.choice(FILES)
    metadata, arrays = tiny(name)
    kind = metadata["general.architecture"]
    if draw.random() < 0.6:
        arrays |= predicting_layer(name)
        metadata[f"{kind}.block_count"] += 1
        metadata[f"{kind}.nextn_predict_layers"] = 1
    more = 0
    tensors: dict[str, Stored] = {key: floats(array) for key, array in arrays.items()}
    for _ in range(draw.choice([0, 1, 1, 2])):
        key = draw.choice(KEYS)
        metadata[f"{kind}.{key}"] = draw.choice([*SIZES, 0.5, True, "x", [1, 2], [16] * 4])
        if draw.random() < 0.1:
            del metadata[f"{kind}.{key}"]
    for _ in range(draw.choice([0, 1, 1, 2])):
        chosen = draw.choice([each for each in tensors if each.startswith("blk.")])
        shape = tensors[chosen][1]
        match draw.randrange(4):
            case 0:
                del tensors[chosen]
            case 1:
                layer = draw.choice([0, 1, 2, 3, 4, 5, 999, 10**6])
                tensors[f"blk.{layer}.{draw.choice(PARTS)}.{draw.choice(['weight', 'bias'])}"] = tensors.pop(chosen)
            case _:
                other = of_other_shape(draw, shape)
                wanted, data = 4 * int(np.prod(other, dtype=object)), tensors.pop(chosen)[2]
                tensors[chosen] = "F32", other, data[:wanted]  # the last one in the file
                more = max(0, wanted - len(data)) if wanted <= MAX_SPARSE_BYTES else 0
    written = write_gguf(path / "m.gguf", metadata, tensors)
    with written.open("r+b") as file:
        file.truncate(written.stat().st_size + more)
    return written


def folder_of(draw: random.Random, path: Path) -> Path:
    """A folder of safetensors files, with other values in config.json, or other names and shapes of tensors."""
    name = draw.choice(FOLDERS)
    folder = write_predicting_folder(path / "m", name, predicting_layer(name))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        config[draw.choice(CONFIG_KEYS)] = draw.choice([*SIZES, *ODD])
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if draw.random() < 0.4:
        convert(folder, LAYOUTS[draw.choice(list(LAYOUTS))], seed=draw.randrange(100))
    for _ in range(draw.choice([0, 1, 1])):
        changed_header(draw, draw.choice(sorted(folder.glob("*.safetensors"))))
    return folder


def changed_header(draw: random.Random, file: Path) -> None:
    whole = file.read_bytes()
    (size,) = struct.unpack_from("<Q", whole)
    header = json.loads(whole[8 : 8 + size])
    names = [each for each in header if each != "__metadata__"]
    scales = [each for each in names if "_scale" in each]
    chosen = draw.choice(scales if scales and draw.random() < 0.5 else names)
    entry = header.pop(chosen)
    match draw.randrange(5):
        case 0:
            pass
        case 1:
            header[f"{draw.choice(NAMES)}{draw.choice(['.weight', '.bias', ''])}"] = entry
        case 2 if entry["shape"]:
            header[chosen] = entry | {"shape": of_other_shape(draw, tuple(entry["shape"]))}
        case 3:
            header[chosen] = entry
            begin, end = entry["data_offsets"]
            number = draw.choice(["<f4", "<u4", "<u2", "u1"])
            odd = np.array(draw.choice([0, 1, 0x7F, 0xFF, -1, 1 << 14]), "<i8").astype(number).tobytes()
            whole = whole[: 8 + size + begin] + odd[: end - begin] + whole[8 + size + begin + len(odd[: end - begin]) :]
        case _:
            kind = draw.choice(["F8_E4M3", "F64", "I64", "U8", "BF16"])
            header[chosen] = entry | {"dtype": kind}
    head = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(head)) + head + whole[8 + size :])


def files_of(path: Path) -> ModelFiles:
    return SafetensorsFiles(path) if path.is_dir() else GGUFFiles(path)


def is_read(path: Path) -> bool:
    """Whether a model is accepted; a layer that drafts may be refused by itself."""
    try:
        checkpoint = read_checkpoint(path)
        found = architecture_of(checkpoint)
        size_facts(checkpoint)
    except ModelFolderError as refused:
        assert_sentence(refused, path)
        return False
    try:
        if checkpoint.predictions:
            with_prediction(found, checkpoint)
    except ModelFolderError as refused:
        assert_sentence(refused, path)
    return True


def assert_sentence(refused: Exception, path: Path) -> None:
    words = str(refused)
    assert str(path) in words and words[-1] in ".)" and "\n" not in words and len(words) < 1500, words


def random_file(number: int, path: Path) -> Path:
    draw = random.Random(number)
    path.mkdir()
    makes: list[Callable[[random.Random, Path], Path]] = [file_of, folder_of]
    return draw.choice(makes)(draw, path)


def test_a_file_of_hostile_sizes_and_names_is_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    is_read(random_file(0, tmp_path / "first"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accepted = [is_read(random_file(number, tmp_path / str(number))) for number in range(1, NUM_FILES)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_KIB
    assert NUM_FILES < 100 or 0.1 < sum(accepted) / NUM_FILES < 0.6  # neither all nor none


@pytest.mark.slow
def test_what_is_read_is_computed(tmp_path: Path) -> None:
    """With the layer that drafts, too, where it is not refused."""
    num_computed = 0
    for number in range(10 * NUM_COMPUTED):
        path = random_file(number, tmp_path / str(number))
        if not is_read(path):
            continue
        for has_predictor in (False, True):
            options = RuntimeOptions(
                threads=1, kv_memory=4_000_000, precision="exact", cache_dir=tmp_path, has_predictor=has_predictor
            )
            try:
                loaded = load_model(files_of(path), options, lambda line: None)
            except (ModelFolderError, SetupError):
                continue
            tokens = [token % loaded.model.vocab_size for token in range(3)]
            assert loaded.model.evaluate([Row(0, tokens, 0, [0], 1)]).shape == (1, loaded.model.vocab_size)
            if loaded.predictor is not None:
                loaded.predictor.evaluate([Row(0, tokens, 0, [0], 1)])
                loaded.predictor.close()
            loaded.model.close()
            num_computed += 1
        if num_computed >= NUM_COMPUTED:
            return
    raise AssertionError("too few of the files are read")
