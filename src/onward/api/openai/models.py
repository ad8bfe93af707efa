"""The objects of the models endpoint."""

from __future__ import annotations

from typing import Literal

import msgspec


class Model(msgspec.Struct, kw_only=True):
    """A model name that requests can use (behaviour §7). `created` is in Unix seconds."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(msgspec.Struct, kw_only=True):
    """All model names."""

    object: Literal["list"] = "list"
    data: list[Model]
