"""The files of an OpenVINO IR, as exporters name them."""

from __future__ import annotations

GRAPH = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
