"""The models endpoint's objects."""

from __future__ import annotations

from typing import Literal

import msgspec


class Model(msgspec.Struct, kw_only=True):
    """One name that can be asked for (spec/completions §7). `created` is in Unix seconds."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]
