"""The files of an OpenVINO IR, as exporters name them."""

from __future__ import annotations

GRAPH = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
SHARED = "shared_model.bin"
"""In converted models with an adapter: the weights of the base, a hard link to the file of the base's own conversion.
In the graph's offsets, the file of the weights comes behind it: see `shared_weights`."""
LONGEST_CONTEXT = "longest_context"
"""In config.json of converted models: the tokens that a model takes with other positions than the graph's."""
