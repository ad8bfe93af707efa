"""Error messages for an operator who names a wrong cluster, or settings that belong to its replicas."""

from __future__ import annotations

from typing import Any

import pytest

from onward.compose import cluster, compose
from onward.engines.cluster import watchers
from onward.engines.cluster.connection import NoCluster, connect
from onward.engines.cluster.messages import ReplicaInfo
from onward.errors import SetupError
from onward.settings import Settings
from tests.engines.cluster.local_transport import LocalTransport


@pytest.mark.parametrize("address", ["nowhere", "ray://host:10001", "host:", ":6379", "host:port"])
def test_an_invalid_address_is_reported(address: str) -> None:
    with pytest.raises(SetupError, match="pass HOST:PORT"):
        connect(address)


def test_a_port_where_nothing_listens_is_reported_at_once() -> None:
    with pytest.raises(NoCluster, match="onward cluster up"):
        connect("127.0.0.1:1")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": ("toy",)}, "leave --model out"),
        ({"precision": "exact"}, "--precision is a setting of the replicas"),
        ({"runtime": "native"}, "--runtime is a setting of the replicas"),
        ({"max_rows": 3}, "--max-rows is a setting of the replicas"),
        ({"prefix_cache": False}, "put prefix_cache into cluster.toml"),
        ({"lora": (("a", "b"),)}, "serve --lora without --cluster"),
    ],
)
def test_settings_of_replicas_are_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        compose(Settings(cluster="127.0.0.1:1", **fields))


def test_replicas_of_another_version_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after minutes nor as a lack of processors."""
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.01)
    with pytest.raises(SetupError) as other_version:
        ReplicaInfo.decode({"protocol": 0})
    watchers.publish("onward-old", {}, str(other_version.value))
    with pytest.raises(SetupError, match="install the same one on all machines"):
        cluster._first_members("onward-old", LocalTransport())  # type: ignore[arg-type]
