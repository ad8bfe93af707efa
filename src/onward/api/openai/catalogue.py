"""The objects of the models endpoint (behaviour §7)."""

from __future__ import annotations

from onward.api.openai.models import Model
from onward.models.registry import ListedModel


def model_object(listed: ListedModel) -> Model:
    """Return a name that requests may use, in OpenAI's shape."""
    return Model(id=listed.id, created=listed.created, owned_by=listed.owned_by)
