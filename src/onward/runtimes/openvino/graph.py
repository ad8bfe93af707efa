"""From an IR on disk to a graph with block tables, whose output layer computes only the requested rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from onward.checkpoints.json_files import read_bounded
from onward.errors import ModelFolderError
from onward.model_files.files import missing_file
from onward.model_files.openvino_ir import GRAPH, WEIGHTS
from onward.runtimes.openvino.library import ops, ov, paged_attention_transformation

ROWS_INPUT = "output_rows"
"""Name of the input with the indices of the tokens that go through the output layer: int32 [rows]."""

MAX_GRAPH_BYTES = 256_000_000
"""Of openvino_model.xml: a hundred times that of a model with 28 layers."""

# Operations that may follow the output layer's MatMul: biases, scales, soft caps, casts, views.
_AFTER_OUTPUT_LAYER = {
    *("Convert", "Reshape", "Squeeze", "Unsqueeze"),
    *("Add", "Subtract", "Multiply", "Divide"),
    *("Tanh", "Clamp", "Minimum", "Maximum"),
}


def read_paged(core: ov.Core, folder: Path, weights: ov.Tensor) -> ov.Model:
    """Read the folder's IR and rebuild it for paged attention, with an output layer for selected tokens only.

    `weights`, uint8, is the content of the folder's file of them, which the model's constants share.

    Raises ModelFolderError if a file is missing or broken or the graph is not a stateful decoder.
    """
    model = _read(core, folder, weights)
    names = {name for port in model.inputs for name in port.get_names()}
    if "input_ids" not in names:
        raise ModelFolderError(
            f"{folder} does not contain a text decoder: its graph has no input_ids (it has {', '.join(sorted(names))})."
        )
    if not any(op.get_type_name() == "ReadValue" for op in model.get_ops()):
        raise ModelFolderError(
            f"{folder} contains a decoder without a KV cache. Export it again with "
            "`optimum-cli export openvino --task text-generation-with-past --model … OUT`."
        )
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise ModelFolderError(
            f"{folder}: OpenVINO cannot convert this model to paged attention ({last_line(error)})."
        ) from error
    if not any(name.startswith("key_cache.") for port in model.inputs for name in port.get_names()):
        raise ModelFolderError(f"{folder}: OpenVINO converted no attention layer of this model to paged attention.")
    _select_output_rows(model, folder)
    return model


def _read(core: ov.Core, folder: Path, weights: ov.Tensor) -> ov.Model:
    if not (folder / GRAPH).is_file():
        raise ModelFolderError(missing_file(folder / GRAPH))
    try:
        return core.read_model(read_bounded(folder / GRAPH, MAX_GRAPH_BYTES), weights)
    except RuntimeError as error:
        raise ModelFolderError(
            f"{folder}: OpenVINO cannot read {GRAPH} with {WEIGHTS} ({last_line(error)})."
        ) from error


def _select_output_rows(model: ov.Model, folder: Path) -> None:
    """Insert a Gather by ROWS_INPUT before the output layer, and convert the result to float32. Mutates `model`."""
    result = _logits_result(model, folder)
    layer = _output_layer(result, folder)
    hidden = layer.input(_token_port(layer))
    source = hidden.get_source_output()
    rows = ops.parameter([-1], np.int32, name=ROWS_INPUT)
    rows.output(0).set_names({ROWS_INPUT})
    axis = _first_dynamic(source.get_partial_shape())
    hidden.replace_source_output(ops.gather(source, rows, ops.constant(axis)).output(0))
    logits = result.input(0).get_source_output()
    if logits.get_element_type() != ov.Type.f32:
        names = logits.get_names()
        result.input(0).replace_source_output(ops.convert(logits, "f32").output(0))
        result.output(0).set_names(names)
    model.add_parameters([rows])
    try:
        model.validate_nodes_and_infer_types()
    except RuntimeError as error:
        raise ModelFolderError(
            f"{folder}: the output layer cannot compute selected rows only ({last_line(error)})."
        ) from error


def _logits_result(model: ov.Model, folder: Path) -> Any:
    results = model.get_results()
    if len(results) == 1:
        return results[0]
    for result in results:
        if "logits" in result.input(0).get_source_output().get_names():
            return result
    raise ModelFolderError(f"{folder}: the graph has {len(results)} results, and none is named logits.")


def _output_layer(result: Any, folder: Path) -> Any:
    """Return the MatMul that computes the logits, found by walking back from the result. Raises ModelFolderError."""
    node = result.input(0).get_source_output().get_node()
    while node.get_type_name() != "MatMul":
        if node.get_type_name() not in _AFTER_OUTPUT_LAYER:
            raise ModelFolderError(
                f"{folder}: the logits are computed by a {node.get_type_name()}, not by an output layer."
            )
        node = node.input(_token_port(node)).get_source_output().get_node()
    return node


def _token_port(node: Any) -> int:
    """Return the index of the input that depends on the tokens; others are weights, biases, scales and shapes."""
    for port in range(node.get_input_size()):
        if node.input_value(port).get_partial_shape().is_dynamic:
            return port
    return 0


def _first_dynamic(shape: ov.PartialShape) -> int:
    if shape.rank.is_dynamic:
        return 0
    return next((axis for axis, length in enumerate(shape) if length.is_dynamic), 0)


def last_line(error: Exception) -> str:
    """Return the last line of an OpenVINO error; the lines before are locations in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
