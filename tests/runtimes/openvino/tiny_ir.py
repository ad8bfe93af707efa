"""Writes a small random decoder as an OpenVINO IR folder, in the form that exporters write: stateful, with
input_ids, attention_mask, position_ids and beam_idx."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openvino as ov
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo
from openvino.utils.node_factory import NodeFactory


@dataclass(frozen=True)
class Shape:
    """`head`: what follows the output layer's MatMul, in which model families differ."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 300
    wide: int = 2
    """Inputs of the second layer of the MLP, in multiples of `hidden`."""
    weights: Literal["f32", "f16", "int8", "int4"] = "int8"
    group: int = 32
    """How many int4 weights share a scale."""
    tied: bool = False
    head: Literal["plain", "bias", "scaled", "softcap"] = "plain"
    scale: float = 0.25
    """What logits are multiplied by, with the head "scaled"."""
    context_length: int = 512
    seed: int = 7

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class _Builder:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.random = np.random.default_rng(shape.seed)
        self.sinks: list[Any] = []

    def weight(self, rows: int, columns: int) -> Any:
        """Return a [rows, columns] matrix in the storage type of the shape, decompressed to float32 in the graph."""
        values = self.random.standard_normal((rows, columns)).astype(np.float32) / np.float32(columns**0.5)
        kind = self.shape.weights
        if kind == "f32":
            return op.constant(values)
        if kind == "f16":
            return op.convert(op.constant(values.astype(np.float16)), "f32")
        if kind == "int8":
            return self._quantized(values, values, 127, ov.Type.i8, (rows, columns))
        group = self.shape.group
        grouped = values.reshape(rows, columns // group, group)
        return op.reshape(
            self._quantized(values, grouped, 7, ov.Type.i4, grouped.shape),
            [rows, columns],
            special_zero=False,
        )

    def _quantized(
        self, values: np.ndarray, grouped: np.ndarray, top: int, kind: ov.Type, shape: tuple[int, ...]
    ) -> Any:
        scale = np.abs(grouped).max(axis=-1, keepdims=True) / top
        whole = np.round(grouped / scale).astype(np.int8)
        if kind == ov.Type.i4:
            low = whole.reshape(-1, 2)
            packed = ((low[:, 0] & 15) | ((low[:, 1] & 15) << 4)).astype(np.uint8)
            tensor = ov.Tensor(packed, ov.Shape(list(shape)), kind)
            constant = op.constant(tensor, shared_memory=False)
        else:
            constant = op.constant(whole)
        decompressed = op.multiply(op.convert(constant, "f16"), op.constant(scale.astype(np.float16)))
        return op.convert(decompressed, "f32")

    def linear(self, x: Any, rows: int, columns: int) -> Any:
        return op.matmul(x, self.weight(rows, columns), False, True)

    def norm(self, x: Any) -> Any:
        mean = op.reduce_mean(op.power(x, op.constant(np.float32(2))), op.constant([-1]), keep_dims=True)
        return op.divide(x, op.sqrt(op.add(mean, op.constant(np.float32(1e-5)))))

    def split_heads(self, x: Any, heads: int) -> Any:
        shaped = op.reshape(x, [0, 0, heads, self.shape.head_dim], special_zero=True)
        return op.transpose(shaped, [0, 2, 1, 3])

    def rotary(self, position_ids: Any) -> tuple[Any, Any]:
        half = self.shape.head_dim // 2
        inverse = (1.0 / 10000 ** (np.arange(half, dtype=np.float32) / half)).reshape(1, half, 1)
        positions = op.convert(op.unsqueeze(position_ids, op.constant(1)), "f32")
        angles = op.transpose(op.matmul(op.constant(inverse), positions, False, False), [0, 2, 1])
        both = op.unsqueeze(op.concat([angles, angles], -1), op.constant(1))
        return op.cos(both), op.sin(both)

    def rotate(self, x: Any, cos: Any, sin: Any) -> Any:
        half = self.shape.head_dim // 2
        step, axis = op.constant([1]), op.constant([3])
        low = op.slice(x, op.constant([0]), op.constant([half]), step, axis)
        high = op.slice(x, op.constant([half]), op.constant([2 * half]), step, axis)
        turned = op.concat([op.multiply(high, op.constant(np.float32(-1))), low], -1)
        return op.add(op.multiply(x, cos), op.multiply(turned, sin))

    def remember(self, x: Any, name: str, batch: Any, beam_idx: Any) -> Any:
        """Append `x` to the state `name` and return the whole state."""
        heads, dim = self.shape.kv_heads, self.shape.head_dim
        info = VariableInfo()
        info.data_shape, info.data_type = ov.PartialShape([-1, heads, -1, dim]), ov.Type.f32
        info.variable_id = name
        variable = Variable(info)
        empty_shape = op.concat([batch, op.constant(np.array([heads, 0, dim], np.int64))], 0)
        empty = op.broadcast(op.constant(np.float32(0)), empty_shape)
        past = op.gather(op.read_value(empty, variable), beam_idx, op.constant(0))
        whole = op.concat([past, x], -2)
        self.sinks.append(op.assign(whole, variable))
        return whole

    def repeat_heads(self, x: Any) -> Any:
        heads, kv_heads, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        if heads == kv_heads:
            return x
        wide = op.unsqueeze(x, op.constant(2))
        target = op.constant(np.array([1, 1, heads // kv_heads, 1, 1], np.int64))
        # not op.broadcast, which passes capital letters, and an I has no small letter in a Turkish locale
        repeated = NodeFactory("opset13").create("Broadcast", [wide, target], {"mode": "bidirectional"})
        return op.reshape(repeated, [0, heads, -1, dim], special_zero=True)

    def head(self, x: Any, embedding: Any) -> Any:
        shape = self.shape
        weight = embedding if shape.tied else self.weight(shape.vocab, shape.hidden)
        logits = op.matmul(x, weight, False, True)
        if shape.head == "bias":
            return op.add(logits, op.constant(self.random.standard_normal((1, 1, shape.vocab), np.float32)))
        if shape.head == "scaled":
            return op.multiply(logits, op.constant(np.float32(shape.scale)))
        if shape.head == "softcap":
            cap = op.constant(np.float32(30))
            return op.multiply(op.tanh(op.divide(logits, cap)), cap)
        return logits


def _attention(build: _Builder, x: Any, layer: int, context: dict[str, Any]) -> Any:
    shape = build.shape
    cos, sin = context["rotary"]
    q = build.split_heads(build.linear(x, shape.hidden, shape.hidden), shape.heads)
    k = build.split_heads(build.linear(x, shape.kv_heads * shape.head_dim, shape.hidden), shape.kv_heads)
    v = build.split_heads(build.linear(x, shape.kv_heads * shape.head_dim, shape.hidden), shape.kv_heads)
    q, k = build.rotate(q, cos, sin), build.rotate(k, cos, sin)
    k = build.remember(k, f"past_key_values.{layer}.key", context["batch"], context["beam_idx"])
    v = build.remember(v, f"past_key_values.{layer}.value", context["batch"], context["beam_idx"])
    attended = op.scaled_dot_product_attention(
        q, build.repeat_heads(k), build.repeat_heads(v), context["mask"], causal=False
    )
    joined = op.reshape(op.transpose(attended, [0, 2, 1, 3]), [0, 0, shape.hidden], special_zero=True)
    return build.linear(joined, shape.hidden, shape.hidden)


def build_model(shape: Shape) -> ov.Model:
    """Return the decoder as a graph. Equal shapes and seeds have equal weights."""
    build = _Builder(shape)
    ids = op.parameter([-1, -1], np.int64, name="input_ids")
    mask = op.parameter([-1, -1], np.int64, name="attention_mask")
    positions = op.parameter([-1, -1], np.int64, name="position_ids")
    beam_idx = op.parameter([-1], np.int32, name="beam_idx")
    inputs = [ids, mask, positions, beam_idx]
    for node in inputs:
        node.output(0).set_names({node.get_friendly_name()})
    embedding = build.weight(shape.vocab, shape.hidden)
    x = op.gather(embedding, ids, op.constant(0))
    batch = op.gather(op.shape_of(ids), op.constant([0]), op.constant(0))
    hidden_keys = op.multiply(
        op.subtract(op.constant(np.float32(1)), op.convert(mask, "f32")), op.constant(np.float32(-1e9))
    )
    context = {
        "rotary": build.rotary(positions),
        "batch": batch,
        "beam_idx": beam_idx,
        "mask": op.unsqueeze(hidden_keys, op.constant([1, 2])),
    }
    for layer in range(shape.layers):
        x = op.add(x, _attention(build, build.norm(x), layer, context))
        wide = op.swish(build.linear(build.norm(x), shape.wide * shape.hidden, shape.hidden))
        x = op.add(x, build.linear(wide, shape.hidden, shape.wide * shape.hidden))
    logits = op.result(build.head(build.norm(x), embedding))
    logits.output(0).set_names({"logits"})
    return ov.Model([logits], build.sinks, inputs, "tiny")


def write_folder(folder: Path, shape: Shape) -> Path:
    """Write the model and config.json into `folder`, which is created if missing, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(build_model(shape), folder / "openvino_model.xml", compress_to_fp16=False)
    config = {"max_position_embeddings": shape.context_length, "vocab_size": shape.vocab}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
