"""Functions that call each other: `kernel` makes a Python function the body of a compiled one.

    @kernel([PTR, I64], F32)
    def block_sum(f, block, count): ...

`block_sum(g, block, 512)` in another body writes a call. A module gets each function once, when it is first called
there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onward.kernels.function import Function, Module
from onward.kernels.values import VOID, Type, Value

Body = Callable[..., Value | None]
"""(f, arguments…) → the value that the function returns, None for nothing."""


class Kernel:
    """A function of the language, not yet in a module."""

    def __init__(self, body: Body, parameters: Sequence[Type], returns: Type, inline: bool | None) -> None:
        self._body, self.parameters, self.returns, self._inline = body, parameters, returns, inline
        self.name = f"{body.__module__.rpartition('.')[2]}.{body.__name__}"
        self.__doc__ = body.__doc__

    def __call__(self, f: Function, *arguments: Value | float) -> Value:
        """Write a call to the function `f`, and this function to its module if that is the first one. Numbers are
        converted to the parameters' types."""
        pairs = zip(arguments, self.parameters, strict=True)
        values = [each if isinstance(each, Value) else f.const(t, each) for each, t in pairs]
        return f.call(self._written(f.module), values)

    def export(self, module: Module) -> str:
        """Write the function to a module so that it can be found in the compiled object; return its name there."""
        self._written(module).linkage = "external"
        return self.name

    def _written(self, module: Module) -> Any:
        known = module.ir.globals.get(self.name)
        if known is not None:
            return known
        f = Function(module, self.name, self.parameters, self.returns, inline=self._inline)
        f.ret(self._body(f, *f.args))
        return f.fn


def kernel(parameters: Sequence[Type], returns: Type = VOID, *, inline: bool | None = None) -> Callable[[Body], Kernel]:
    """Return a decorator for the body of a function; `inline` as in function.Function."""
    return lambda body: Kernel(body, parameters, returns, inline)
