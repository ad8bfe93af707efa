"""The grammars of a model: each compiled once for all jobs that have it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from onward.constraints.choice import Compiled
from onward.constraints.errors import GrammarError

MAX_COMPILED_GRAMMARS = 128

EndTokens = frozenset[int]


class Grammars:
    """Safe from every thread. Keeps the MAX_COMPILED_GRAMMARS that were used last, and what is wrong with others."""

    def __init__(self, compile: Callable[[str, EndTokens], Compiled]) -> None:
        """`compile` is called on whatever thread needs a grammar, once for each. It raises GrammarError."""
        self._compile = compile
        self._lock = Lock()
        """Guards what follows; held for microseconds."""
        self._compiling: dict[tuple[str, EndTokens], Lock] = {}
        """Held while a grammar is compiled: others are compiled meanwhile."""
        self._compiled: OrderedDict[tuple[str, EndTokens], Compiled | GrammarError] = OrderedDict()

    def has(self, grammar: str, end_tokens: EndTokens) -> bool:
        """Whether `compiled` returns at once."""
        return (grammar, end_tokens) in self._compiled

    def compiled(self, grammar: str, end_tokens: EndTokens) -> Compiled:
        """Return a grammar for jobs with these end tokens. May take a second, the first time longer. Raises
        GrammarError."""
        found = self._known(grammar, end_tokens)
        if found is None:
            with self._lock:
                compiling = self._compiling.setdefault((grammar, end_tokens), Lock())
            with compiling:
                found = self._known(grammar, end_tokens)
                if found is None:
                    found = self._tried(grammar, end_tokens)
                    self._keep(grammar, end_tokens, found)
        if isinstance(found, GrammarError):
            raise GrammarError(str(found))
        return found

    def _tried(self, grammar: str, end_tokens: EndTokens) -> Compiled | GrammarError:
        try:
            return self._compile(grammar, end_tokens)
        except GrammarError as error:
            return error
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # a panic in the library
            return GrammarError(f"the library that compiles it failed: {type(error).__name__}")

    def _known(self, grammar: str, end_tokens: EndTokens) -> Compiled | GrammarError | None:
        with self._lock:
            found = self._compiled.get((grammar, end_tokens))
            if found is not None:
                self._compiled.move_to_end((grammar, end_tokens))
            return found

    def _keep(self, grammar: str, end_tokens: EndTokens, compiled: Compiled | GrammarError) -> None:
        with self._lock:
            self._compiled[grammar, end_tokens] = compiled
            self._compiling.pop((grammar, end_tokens), None)
            if len(self._compiled) > MAX_COMPILED_GRAMMARS:
                self._compiled.popitem(last=False)
