"""The cases of `benchmarks.speculation`: texts copied with changes, and texts that cannot be predicted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.bare import random_prompts
from benchmarks.edits import PROSE, Edit, WordTokenizer, code_edits, prose_edit

FIRST_ID = 300
"""First id of words: above bytes and special tokens."""
LOADS = (1, 8, 32)
KINDS = ("prediction", "lookup", "unpredictable", "together")


@dataclass(frozen=True, slots=True)
class Task:
    """One job to submit. `script` is the text forced on it, () if the model samples freely."""

    prompt: tuple[int, ...]
    tokens: int
    script: tuple[int, ...] = ()
    prediction: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """Tasks, and how many of them run at a time; `kind` is one of KINDS."""

    kind: str
    name: str
    clients: int
    tasks: list[Task]

    @property
    def longest(self) -> int:
        """Tokens of its longest sequence."""
        return max(len(task.prompt) + task.tokens for task in self.tasks)


class Workloads:
    """Creates the cases for the vocabulary of a model."""

    def __init__(self, vocab_size: int, tokens: int) -> None:
        """`tokens`: how many each job generates whose text is not an edit."""
        self._tokenizer = WordTokenizer(FIRST_ID, vocab_size)
        self._vocab_size = vocab_size
        self._tokens = tokens
        self._edits = [*code_edits(), prose_edit()]

    def cases(self, kinds: Iterable[str]) -> list[Case]:
        """Return the cases of these kinds, in the order of KINDS."""
        makers = {
            "prediction": self._predicted,
            "lookup": self._looked_up,
            "unpredictable": self._unpredictable,
            "together": self._together,
        }
        return [case for kind in KINDS if kind in set(kinds) for case in makers[kind]()]

    def _predicted(self) -> list[Case]:
        return [Case("prediction", edit.name, 1, [self._task(edit, predicted=True)]) for edit in self._edits]

    def _looked_up(self) -> list[Case]:
        return [Case("lookup", edit.name, 1, [self._task(edit, predicted=False)]) for edit in self._edits[:-1]]

    def _together(self) -> list[Case]:
        edits = itertools.islice(itertools.cycle(self._edits), 8)
        return [Case("together", "copying with predictions", 8, [self._task(edit, predicted=True) for edit in edits])]

    def _unpredictable(self) -> list[Case]:
        prose = self._tokenizer.encode(PROSE)
        wrong = self._tokenizer.encode(self._edits[0].before)
        cases = []
        for clients in LOADS:
            prompts = random_prompts(self._vocab_size, clients, 64, clients)
            free = [Task(tuple(prompt), self._tokens) for prompt in prompts]
            forced = [self._prose(prose, 32 + index % 8) for index in range(clients)]
            cases.append(Case("unpredictable", "the model's own text", clients, free))
            cases.append(Case("unpredictable", "prose", clients, forced))
        cases.append(Case("unpredictable", "prose, wrong prediction", 1, [self._prose(prose, 32, wrong)]))
        return cases

    def _prose(self, text: tuple[int, ...], begin: int, prediction: tuple[int, ...] = ()) -> Task:
        script = text[begin : begin + 2 * self._tokens]
        return Task(text[:begin], len(script), script, prediction)

    def _task(self, edit: Edit, *, predicted: bool) -> Task:
        before, after = self._tokenizer.encode(edit.before), self._tokenizer.encode(edit.after)
        prompt = self._tokenizer.encode(f"{edit.instruction}\n\n") + before + self._tokenizer.encode("\n\n")
        return Task(prompt, len(after), after, before if predicted else ())
