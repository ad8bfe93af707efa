"""Steps that read prompts have few different sizes: kernels are compiled, and kept, for each."""

import random

import pytest

from onward.engine.model import Row
from onward.runtimes.openvino.batch import INPUTS, Batch


class Request:
    """Stands for an infer request: remembers what is bound."""

    def __init__(self) -> None:
        self.tensors = {}

    def set_tensor(self, name: str, tensor: object) -> None:
        self.tensors[name] = tensor

    def tokens(self) -> int:
        return int(self.tensors["input_ids"].shape[0])


@pytest.fixture
def request_and_batch() -> tuple[Request, Batch]:
    request = Request()
    return request, Batch(request, INPUTS, 99, threads=2)


def chunk(tokens: int) -> Row:
    return Row(0, [7] * tokens, 0, list(range(40)), 1)


def decodes(count: int) -> list[Row]:
    return [Row(1 + number, [7], 5, [50 + number], 1) for number in range(count)]


@pytest.mark.parametrize("others", [0, 1, 5, 31])
def test_above_64_tokens_there_are_only_multiples_of_8(others: int, request_and_batch: tuple[Request, Batch]) -> None:
    request, batch = request_and_batch
    for tokens in range(65, 600):
        rows = [*decodes(others), chunk(tokens)]
        outputs = batch.fill(rows)
        total = tokens + others
        assert outputs == len(rows)
        assert request.tokens() % 8 == 0
        assert total <= request.tokens() <= total + 9


def test_short_steps_and_steps_that_only_decode_keep_their_size(request_and_batch: tuple[Request, Batch]) -> None:
    request, batch = request_and_batch
    for tokens in random.Random(1).sample(range(2, 65), 20):
        batch.fill([chunk(tokens)])
        assert request.tokens() == tokens
    for count in (2, 3, 63, 65, 71):
        batch.fill(decodes(count))
        assert request.tokens() == count
