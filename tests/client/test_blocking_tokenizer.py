"""`client.tokenizer`: text to token ids and back, with the tokenizer that completions use."""

from __future__ import annotations

import asyncio

import pytest

import onward
from onward.errors import EngineStopped, InvalidRequest, ModelNotFound

TEXT = "Once upon a time, naïve 🙂"


@pytest.mark.real
def test_a_text_becomes_token_ids_and_back() -> None:
    with onward.Onward("storyteller", kv_memory=100_000_000) as client:
        tokens = client.tokenizer.encode(TEXT)
        assert client.tokenizer.decode(tokens) == TEXT
        assert b"".join(client.tokenizer.token_bytes(tokens)) == TEXT.encode()
        assert client.tokenizer.decode(iter(tokens[:4])) == TEXT[: len(client.tokenizer.decode(tokens[:4]))]
        by_text = client.completions.create(prompt=TEXT, max_tokens=8, temperature=0)
        by_tokens = client.completions.create(prompt=tokens, max_tokens=8, temperature=0)
        assert by_text.usage is not None and by_text.usage.prompt_tokens == len(tokens)
        assert by_text.choices == by_tokens.choices


def test_part_of_a_character_is_a_replacement_character_and_exact_as_bytes() -> None:
    with onward.Onward("toy") as client:
        tokens = client.tokenizer.encode("ß")
        assert client.tokenizer.decode(tokens[:1]) == "\ufffd"
        assert client.tokenizer.token_bytes(tokens) == [b"\xc3", b"\x9f"]


def test_what_cannot_be_converted_is_an_error_of_the_api() -> None:
    with onward.Onward("toy") as client:
        with pytest.raises(InvalidRequest):
            client.tokenizer.decode([10**9])
        with pytest.raises(ModelNotFound):
            client.tokenizer.encode("x", model="curie")
        assert client.tokenizer.encode("x", model="toy") == client.tokenizer.encode("x")
    with pytest.raises(EngineStopped, match="client is closed"):
        client.tokenizer.encode("x")


def test_the_asynchronous_tokenizer_returns_the_same() -> None:
    async def ask() -> tuple[list[int], str, list[bytes]]:
        async with onward.AsyncOnward("toy") as client:
            tokens = await client.tokenizer.encode(TEXT, add_special_tokens=False)
            return tokens, await client.tokenizer.decode(tokens), await client.tokenizer.token_bytes(tokens)

    tokens, text, spelled = asyncio.run(ask())
    with onward.Onward("toy") as client:
        assert tokens == client.tokenizer.encode(TEXT, add_special_tokens=False)
    assert text == TEXT and b"".join(spelled) == TEXT.encode()
