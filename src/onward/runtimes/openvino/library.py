"""Imports openvino for this package, without its model converter, which would load a telemetry client as well.

Where openvino was imported before, it is left as it is.
"""

from __future__ import annotations

import os
import sys

# oneDNN keeps compiled kernels for every number of tokens that a step has had: 1,024 of them by default, which is
# hundreds of megabytes. It reads this variable when it compiles the first.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")

_CONVERTER = "openvino.tools.ovc"
_blocked = "openvino" not in sys.modules
if _blocked:
    sys.modules[_CONVERTER] = None  # type: ignore[assignment]  # the documented way to make an import fail
try:
    import openvino as ov
    from openvino import opset13 as ops
    from openvino._offline_transformations import paged_attention_transformation
finally:
    if _blocked:
        del sys.modules[_CONVERTER]

__all__ = ["ops", "ov", "paged_attention_transformation"]
