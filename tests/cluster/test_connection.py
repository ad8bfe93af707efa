"""What an operator reads who names a wrong cluster, or settings that belong to its replicas."""

from __future__ import annotations

from typing import Any

import pytest

from onward.cluster.connection import NoCluster, connect
from onward.compose import compose
from onward.errors import SetupError
from onward.settings import Settings


@pytest.mark.parametrize("address", ["nowhere", "ray://host:10001", "host:", ":6379", "host:port"])
def test_an_address_that_is_none_is_said(address: str) -> None:
    with pytest.raises(SetupError, match="pass HOST:PORT"):
        connect(address)


def test_a_port_where_nothing_listens_is_said_at_once() -> None:
    with pytest.raises(NoCluster, match="onward cluster up"):
        connect("127.0.0.1:1")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": ("toy",)}, "leave --model out"),
        ({"precision": "exact"}, "--precision is a setting of the replicas"),
        ({"max_rows": 3}, "--max-rows is a setting of the replicas"),
        ({"prefix_cache": False}, "put prefix_cache into cluster.toml"),
        ({"lora": (("a", "b"),)}, "serve --lora without --cluster"),
    ],
)
def test_settings_of_replicas_are_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        compose(Settings(cluster="127.0.0.1:1", **fields))
