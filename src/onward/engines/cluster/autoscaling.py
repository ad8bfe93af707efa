"""How many replicas a model needs. The control process of Ray Serve calls it, by its import path."""

from __future__ import annotations

from typing import Any

CALLS = "onward_calls"
"""What replicas report: calls that have not ended. Ray's own counts are those of its calls, which hold several."""


def replicas_for_calls(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the replicas that all calls need, not rounded. A replica that has not reported yet has no calls.

    `context`: an `AutoscalingContext` of Ray Serve, which applies the limits and delays to the result.
    """
    calls = (context.aggregated_metrics or {}).get(CALLS, {})
    return sum(calls.values()) / context.config.get_target_ongoing_requests(), {}
