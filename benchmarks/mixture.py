"""A mixture of experts in Onward's runtime and in llama.cpp, on the same file, in alternation.

`python -m benchmarks.mixture FILE.gguf --llama-server /path/of/llama-server` writes FILE with random weights in the
shape of a model with eight layers, if it is not there yet, and measures decoding with several rows, and prefilling:
tokens per second of the bare loop and of llama-batched-bench, and their ratio within each round. Tokens are random, so
that rows use different experts. `--shape`: Qwen3-30B-A3B (Q4_K_M, 3.6 GB) or gpt-oss-20b (MXFP4, 5.4 GB).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from training.gguf_file import write_tokenizer

from benchmarks import measure
from benchmarks.bare import random_prompts
from benchmarks.models import load
from benchmarks.peer_build import find
from benchmarks.random_model import LOGIT_DEVIATION, tokenizer
from onward.engine.model import ModelRunner, Row
from onward.machine import compute_threads

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-30b": {
        "architecture": "qwen3moe", "context_length": 40_960, "rope_theta": 1e6, "hidden_size": 2048,
        "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "vocab_size": 151_936,
        "eos_token_id": 0, "file_type": gguf.LlamaFileType.MOSTLY_Q4_K_M,
    },
    "gpt-oss-20b": {
        "architecture": "gpt-oss", "context_length": 131_072, "rope_theta": 150_000.0, "hidden_size": 2880,
        "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 2880, "vocab_size": 201_088,
        "eos_token_id": 0, "file_type": gguf.LlamaFileType.MOSTLY_MXFP4_MOE,
    },
}  # fmt: skip
SCALES = {"Q4_K": ((0, 1.5e-4), (2, 1.1e-3)), "Q6_K": ((208, 4.5e-5),), "Q8_0": ((0, 3e-4),), "MXFP4": ()}
"""Where a block has scales, float16, and values with which random integers are weights of a usual size."""
BATCHED_BENCH = "llama-batched-bench"


def write(path: Path, layers: int, config: dict[str, Any], seed: int = 0) -> None:
    """Write a file with random bits as weights, in the types that published files have."""
    writer = gguf.GGUFWriter(path, config["architecture"], use_temp_file=False)
    writer.add_context_length(config["context_length"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(1e-6)
    if config["architecture"] == "gpt-oss":
        writer.add_sliding_window(128)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_file_type(config["file_type"])
    write_tokenizer(writer, config, json.loads(tokenizer(config["vocab_size"]).to_str()), "gpt-2")
    for name, values, kind in _tensors(layers, config, np.random.default_rng(seed)):
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(layers: int, config: dict[str, Any], random: np.random.Generator) -> Iterator[tuple[str, Any, Any]]:
    """Yield names, stored values and types; where Q4_K_M alternates, every second layer has Q6_K."""
    is_oss = config["architecture"] == "gpt-oss"
    hidden, inner, count = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    size = config["head_dim"]
    queries, keys = size * config["num_attention_heads"], size * config["num_key_value_heads"]

    def blocks(kind: str, *shape: int) -> tuple[Any, Any]:
        stored = gguf.GGMLQuantizationType[kind]
        weights, size = gguf.GGML_QUANT_SIZES[stored]
        found = np.frombuffer(bytearray(random.bytes(math.prod(shape) // weights * size)), np.uint8).reshape(-1, size)
        for place, scale in SCALES[kind]:
            found[:, place : place + 2] = np.array([scale], "<f2").view(np.uint8)
        if kind == "MXFP4":
            found[:, 0] = 120  # 2 to the power of -7
        return found.reshape(*shape[:-1], -1), stored

    def floats(*shape: int, deviation: float = 0.0) -> tuple[Any, Any]:
        values = random.standard_normal(shape, np.float32) * np.float32(deviation) if deviation else np.ones(shape)
        return values.astype(np.float32), gguf.GGMLQuantizationType.F32

    yield "token_embd.weight", *blocks("Q8_0" if is_oss else "Q4_K", config["vocab_size"], hidden)
    yield "output.weight", *blocks("Q8_0" if is_oss else "Q6_K", config["vocab_size"], hidden)
    scale = np.float32(LOGIT_DEVIATION / (0.02 * math.sqrt(hidden)))
    yield "output_norm.weight", np.full(hidden, scale, np.float32), gguf.GGMLQuantizationType.F32
    for layer in range(layers):
        better = "Q6_K" if layer % 2 else "Q4_K"
        usual, values, experts, down = (
            ("Q8_0", "Q8_0", "MXFP4", "MXFP4") if is_oss else ("Q4_K", better, "Q4_K", better)
        )
        matrices: dict[str, tuple[Any, ...]] = {
            "attn_q": (usual, queries, hidden), "attn_k": (usual, keys, hidden), "attn_v": (values, keys, hidden),
            "attn_output": (usual, hidden, queries), "ffn_gate_exps": (experts, count, inner, hidden),
            "ffn_up_exps": (experts, count, inner, hidden), "ffn_down_exps": (down, count, hidden, inner),
        }  # fmt: skip
        for name, (kind, *shape) in matrices.items():
            yield f"blk.{layer}.{name}.weight", *blocks(kind, *shape)
            if is_oss:
                yield f"blk.{layer}.{name}.bias", *floats(*shape[:-1], deviation=0.05)
        yield f"blk.{layer}.ffn_gate_inp.weight", *floats(count, hidden, deviation=0.05)
        norms = {"attn_norm": hidden, "ffn_norm": hidden, "attn_q_norm": size, "attn_k_norm": size}
        if is_oss:
            norms = {"attn_norm": hidden, "post_attention_norm": hidden, "attn_sinks": config["num_attention_heads"]}
            yield f"blk.{layer}.ffn_gate_inp.bias", *floats(count, deviation=0.05)
        for name, length in norms.items():
            yield f"blk.{layer}.{name}.weight", *floats(length)


def of_onward(model: ModelRunner, rows: int, prompt: int, out: int, seed: int) -> tuple[float, float]:
    """Return tokens per second of prefilling and of decoding, of so many sequences with random tokens."""
    prompts = random_prompts(model.vocab_size, rows, prompt, seed)
    following = random_prompts(model.vocab_size, rows, out, seed + 1)
    table, chunk = model.shape.blocks_for(prompt + out), model.shape.max_prefill_tokens
    blocks = [range(each * table, (each + 1) * table) for each in range(rows)]
    begin = time.perf_counter()
    for each in range(rows):
        for at in range(0, prompt, chunk):
            model.evaluate([Row(each, prompts[each][at : at + chunk], at, blocks[each], int(at + chunk >= prompt))])
    prefilled = time.perf_counter()
    for at in range(out):
        model.evaluate([Row(each, [following[each][at]], prompt + at, blocks[each], 1) for each in range(rows)])
    done = time.perf_counter()
    return rows * prompt / (prefilled - begin), rows * out / (done - prefilled)


def of_llama(program: Path, file: Path, rows: int, prompt: int, out: int) -> tuple[float, float]:
    """Return the same of llama-batched-bench, with its best settings for processors."""
    command = [
        str(program), "-m", str(file), "-c", str(rows * (prompt + out) + 512), "-b", "2048", "-ub", "512",
        "-npp", str(prompt), "-ntg", str(out), "-npl", str(rows), "-t", str(compute_threads()),
        "--output-format", "jsonl",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))
    return found["speed_pp"], found["speed_tg"]


def figures_of(rounds: list[tuple[tuple[float, float], tuple[float, float]]]) -> dict[str, dict[str, float]]:
    """Return tokens per second of both, and their ratio within each round."""
    found = {}
    for index, what in enumerate(("prefill", "decode")):
        pairs = [(own[index], theirs[index]) for own, theirs in rounds]
        found[f"{what} onward"] = measure.median_of([own for own, _ in pairs])
        found[f"{what} llama.cpp"] = measure.median_of([theirs for _, theirs in pairs])
        found[f"{what} ratio"] = measure.median_of([own / theirs for own, theirs in pairs])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixture", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE.gguf")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-30b", help="of the file, if it is written")
    parser.add_argument("--layers", type=int, default=8, help="of the file, if it is written (default 8)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--out", type=int, default=32, help="tokens per row (default 32)")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, after a warm-up round (default 3)")
    parser.add_argument("--llama-server", type=Path, help="default: the one on PATH, else built into .peers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    program = find(BATCHED_BENCH, options.llama_server)
    if not options.file.exists():
        options.file.parent.mkdir(parents=True, exist_ok=True)
        write(options.file, options.layers, SHAPES[options.shape])
    at_start = measure.start()
    model, _ = load(str(options.file))
    figures = {}
    for rows in options.rows:
        sizes = rows, options.prompt if rows == 1 else 64, options.out
        rounds = []
        for number in range(options.rounds + 1):
            own = of_onward(model, *sizes, seed=1000 * rows + 2 * number)
            rounds.append((own, of_llama(program, options.file, *sizes)))
        figures[str(rows)] = found = figures_of(rounds[1:])
        words = " · ".join(f"{name} {each['median']:.2f}" for name, each in found.items())
        print(f"{rows:>3} rows: {words}", flush=True)
    measure.write_report(options.json, "mixture", figures, at_start)
    return 0


if __name__ == "__main__":
    measure.run_main(main)
