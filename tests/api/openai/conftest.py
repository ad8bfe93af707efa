"""For the tests of the protocol: equal requests are equal."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from onward.completions import request


@pytest.fixture(scope="package", autouse=True)
def constant_random_seed() -> Iterator[None]:
    """The random seed of every request is 0, so that requests can be compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "secrets", SimpleNamespace(randbits=lambda count: 0))
        yield
