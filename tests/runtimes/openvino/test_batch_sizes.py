"""Steps have few different sizes: kernels are compiled, and kept, for each."""

import random
from typing import Any

import pytest

from onward.engine.model import Row
from onward.runtimes.openvino.batch import INPUTS, Batch
from onward.runtimes.openvino.graph import ROWS_INPUT


class Request:
    """Replaces an infer request: keeps the tensors that were bound."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def set_tensor(self, name: str, tensor: object) -> None:
        self.tensors[name] = tensor

    def tokens(self) -> int:
        return int(self.tensors["input_ids"].shape[0])

    def outputs(self) -> int:
        return int(self.tensors[ROWS_INPUT].shape[0])


@pytest.fixture
def request_and_batch() -> tuple[Request, Batch]:
    request = Request()
    return request, Batch(request, INPUTS, 99, threads=2)


def chunk(tokens: int) -> Row:
    return Row(0, [7] * tokens, 0, list(range(40)), 1)


def decodes(count: int) -> list[Row]:
    return [Row(1 + number, [7], 5, [50 + number], 1) for number in range(count)]


@pytest.mark.parametrize("others", [0, 1, 5, 31])
def test_steps_with_prefill_have_a_multiple_of_8_tokens(others: int, request_and_batch: tuple[Request, Batch]) -> None:
    request, batch = request_and_batch
    for tokens in range(8, 600):
        rows = [*decodes(others), chunk(tokens)]
        outputs = batch.fill(rows)
        total = tokens + others
        assert outputs == len(rows)
        assert request.tokens() % 8 == 0
        assert total <= request.tokens() < total + 8


def test_steps_that_only_decode_have_few_sizes(request_and_batch: tuple[Request, Batch]) -> None:
    request, batch = request_and_batch
    sizes = set()
    for count in random.Random(1).sample(range(1, 65), 64):
        assert batch.fill(decodes(count)) == count
        assert count <= request.tokens() < count + 4
        assert request.outputs() == request.tokens()
        sizes.add(request.tokens())
    assert sizes == {2, 4, 6, *range(8, 65, 4)}
