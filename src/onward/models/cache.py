"""Converted models in the cache folder, for commands that list and remove them."""

from __future__ import annotations

from onward.runtimes.openvino.conversion_cache import Conversion, conversions, remove, shrink

__all__ = ["Conversion", "conversions", "remove", "shrink"]
