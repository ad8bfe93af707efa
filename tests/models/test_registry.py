"""The model names that clients see."""

from __future__ import annotations

from onward.models.registry import ListedModel, did_you_mean, listed_models


def test_models_come_first_and_aliases_have_the_times_of_their_models() -> None:
    listed = listed_models({"storyteller": 5, "org/m": 7}, {"davinci-002": "org/m"}, {"babbage-002": "storyteller"})
    assert listed == [
        ListedModel(id="storyteller", created=5, owned_by="onward"),
        ListedModel(id="org/m", created=7, owned_by="org"),
        ListedModel(id="davinci-002", created=7, owned_by="org", model="org/m"),
        ListedModel(id="babbage-002", created=5, owned_by="alias of storyteller", model="storyteller"),
    ]


def test_only_a_similar_name_is_suggested() -> None:
    assert did_you_mean("davinci-02", ["davinci-002", "storyteller"]) == " Did you mean 'davinci-002'?"
    assert did_you_mean("xyz", ["davinci-002", "storyteller"]) == ""
