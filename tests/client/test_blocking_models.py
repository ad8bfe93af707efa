"""`client.models`, used as the openai package's is."""

from __future__ import annotations

import asyncio

import pytest

import onward
from onward.errors import NotFound
from onward.settings import OPENAI_NAMES

NAMES = ["toy", *OPENAI_NAMES]


def test_models_are_listed_and_retrieved() -> None:
    with onward.Onward("toy") as client:
        assert [model.id for model in client.models.list().data] == NAMES
        assert client.models.retrieve("toy").object == "model"
        with pytest.raises(NotFound):
            client.models.retrieve("gpt-5")


def test_the_list_can_be_iterated_over() -> None:
    with onward.Onward("toy") as client:
        models = client.models.list()
        assert [model.id for model in models] == [model.id for model in models] == NAMES


def test_the_asynchronous_list_can_be_awaited_or_iterated_over() -> None:
    async def ask() -> list[list[str]]:
        async with onward.AsyncOnward("toy") as client:
            page = await client.models.list()
            return [
                [model.id for model in page.data],
                [model.id for model in page],
                [model.id async for model in page],
                [model.id async for model in client.models.list()],
                [(await client.models.retrieve(name)).id for name in NAMES],
            ]

    assert asyncio.run(ask()) == [NAMES] * 5
