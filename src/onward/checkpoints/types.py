"""Types in GGUF files: of tensors (ggml's `ggml_type`), with the bytes that a block of weights takes, and of tokens."""

from __future__ import annotations

from typing import NamedTuple

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
CODEBOOK_TYPES = frozenset({"IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"})
"""Types whose bits stand for vectors of a table, or for something else that has no integers to compute with."""
UNSUPPORTED_TYPES: dict[int, str] = {
    9: "Q8_1", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
}  # fmt: skip
"""Names of the types that are known and not read."""
FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 25: "IQ4_NL", 30: "IQ4_XS",
    32: "BF16", 38: "MXFP4", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
"""Names of whole files, which mix types, by `general.file_type` (llama.cpp's `llama_ftype`)."""


class TensorType(NamedTuple):
    """One type. Weights come in blocks of `block_weights` along a row, each of `block_bytes` bytes."""

    name: str
    block_weights: int
    block_bytes: int


FLOAT32, FLOAT16, BFLOAT16 = TensorType("F32", 1, 4), TensorType("F16", 1, 2), TensorType("BF16", 1, 2)
MXFP4, NVFP4 = TensorType("MXFP4", 32, 17), TensorType("NVFP4", 64, 36)
OCTETS = TensorType("U8", 1, 1)
"""Of safetensors files: bytes that are parts of another tensor."""
FLOAT8 = TensorType("F8_E4M3", 1, 1)
"""Of safetensors files: OCP's 8-bit floating point with four bits of exponent and no infinities (float8_e4m3fn)."""

TENSOR_TYPES: dict[int, TensorType] = {
    0: FLOAT32,
    1: FLOAT16,
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    29: TensorType("IQ1_M", 256, 56),
    30: BFLOAT16,
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: MXFP4,
    40: NVFP4,
    41: TensorType("Q1_0", 128, 18),
    42: TensorType("Q2_0", 64, 18),
}

"""By number in the file (ggml/include/ggml.h)."""


def type_name(number: int) -> str:
    """Return a name for messages."""
    known = TENSOR_TYPES.get(number)
    return known.name if known else UNSUPPORTED_TYPES.get(number, f"number {number}")
