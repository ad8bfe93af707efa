"""The files of an OpenVINO IR, as exporters name them."""

from __future__ import annotations

GRAPH = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
LONGEST_CONTEXT = "longest_context"
"""In config.json of converted models: the tokens that a model takes with other positions than the graph's."""
