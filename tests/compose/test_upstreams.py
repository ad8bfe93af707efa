"""What a fingerprint promises with an upstream: the same bytes, or, with most servers, nothing."""

from __future__ import annotations

import pytest

from onward.compose.served import _fingerprint
from onward.compose.upstreams import BATCH_INVARIANT, fingerprint_of, promises_bytes
from onward.settings import Settings
from onward.values import ContentFilterSetting

UPSTREAMS = ("llama-server b1 /m.gguf 1 2", "vllm 0.1 model", "sglang 0.1 model")


@pytest.mark.parametrize("filters", [(), (ContentFilterSetting("secrets", ("x.",)),)])
def test_only_engines_that_compute_the_same_bits_again_promise_bytes(
    filters: tuple[ContentFilterSetting, ...],
) -> None:
    settings = Settings(content_filter=filters)
    own = "fp_0a1b2c3d4e5f"
    fingerprints = [_fingerprint(settings, "", fingerprint_of(description)) for description in UPSTREAMS]
    assert not any(map(promises_bytes, fingerprints)), fingerprints
    assert promises_bytes(_fingerprint(settings, "", own))
    assert promises_bytes(_fingerprint(settings, "", fingerprint_of(UPSTREAMS[1], BATCH_INVARIANT)))
    assert (_fingerprint(settings, "", own) == own) == (not filters), "filters change the text"
