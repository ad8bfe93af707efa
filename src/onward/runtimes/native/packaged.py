"""Objects of usual kernels for usual processors, which a wheel brings (kernels.object_cache), so that a first start
need not compile: `python -m onward.runtimes.native.packaged FOLDER`, with `--here` only those of this machine's
architecture.

An object that is not among them, or was compiled by another LLVM, is compiled on the user's machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from onward.kernels import self_test
from onward.kernels.activations import ActivationName
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.code import module_key
from onward.kernels.compiler import compile_object
from onward.kernels.compiler_processes import share
from onward.kernels.interpreter import Kernels
from onward.kernels.isa import Isa
from onward.kernels.object_cache import SUFFIX, file_of
from onward.kernels.products import ProductKind
from onward.kernels.recipe import Recipe, Sources
from onward.kernels.targets import FORMS, USUAL, Target, exact_host
from onward.sampling import kernels as sampling_kernels

_QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4")
_FLOATS = ("F32", "F16", "BF16")
_HEADS = ((6, 2, 64), (9, 3, 64), (12, 2, 128))
"""Heads, heads of keys and values, and their size, of models that are started first: the built-in one, SmolLM2 135M and
Qwen 2.5 1.5B."""
_WINDOWED = ((4, 1, 256),)
"""Those of Gemma 3 270M and 1B."""
_FAST_HEADS = (
    *((15, 5, 64), (32, 32, 64)),  # SmolLM2
    *((14, 2, 64), (16, 2, 128), (28, 4, 128)),  # Qwen 2.5
    *((16, 8, 128), (32, 8, 128), (32, 4, 128)),  # Qwen 3, Llama 3 8B, Mistral 7B
    *((32, 8, 64), (24, 8, 128)),  # Llama 3.2
)
"""Those of other models that are often used, with `fast` alone. Others take a third of a second to compile."""


def recipes(isa: Isa) -> list[Recipe]:
    """Return how the modules are written of which the package has objects: with `fast`, and with `exact`."""
    found = [sampling_kernels.recipe(isa), *self_test.recipes(isa)]
    for activations in ("int8", "float32"):
        found += _kernels(activations).recipes(isa)
    return list({repr(each.facts): each for each in found}.values())


def _kernels(activations: ActivationName) -> Kernels:
    is_wide = activations == "float32"
    usual = _HEADS if is_wide else (*_HEADS, *_FAST_HEADS)
    shapes = [(heads, False) for heads in usual] + [(heads, True) for heads in _WINDOWED]
    products = [ProductKind(name, activations) for name in _QUANTISED]
    products += [ProductKind(name, "float32") for name in (_FLOATS if is_wide else ("F32",))]
    return Kernels(
        tuple(products),
        (*_QUANTISED, *_FLOATS),
        tuple(AttentionShape(*heads, heads[2], is_wide, has_window) for heads, has_window in shapes),
        has_experts=True,
        has_caps=True,
        has_state_spaces=True,
    )


def write_objects(folder: Path, targets: Sequence[Target]) -> None:
    """Compile all recipes for each processor, into a new folder. Takes some 20 seconds of processor time for each."""
    folder.mkdir(parents=True)
    sources: Sources = {}
    jobs = [partial(_write, folder, each, target, sources) for target in targets for each in recipes(target.isa)]
    share(jobs, compile_object)


def _write(
    folder: Path, recipe: Recipe, target: Target, sources: Sources, compile_text: Callable[[str, Target], bytes]
) -> None:
    if recipe.digest(sources) is None:
        raise RuntimeError("The sources have just been written, and may not be those that were imported: run it again.")
    key = module_key(recipe, target, sources)
    (folder / (key + SUFFIX)).write_bytes(file_of(key, compile_text(recipe.text(), target)))


def wanted_targets(*, only_here: bool) -> list[Target]:
    """Return the processors that a package has objects for. `only_here`: it is for machines of this architecture."""
    architecture = exact_host().architecture
    usual = (FORMS[name] for name in USUAL)
    return [each for each in usual if not only_here or each.architecture == architecture]


if __name__ == "__main__":
    write_objects(Path(sys.argv[1]), wanted_targets(only_here="--here" in sys.argv[2:]))
