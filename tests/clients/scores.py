"""Reference scores for evaluations: log-probabilities from the engine itself, below every layer of the API."""

from __future__ import annotations

import itertools

import numpy as np

from onward.engine.events import Prefilled
from onward.engine.job import Job
from onward.engine.model import ModelRunner, Tokenizer
from onward.engine.step import Engine
from onward.model_files.toy import ToyTokenizer
from onward.models.resolve import resolve
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from onward.runtimes.toy.model import ToyModel
from onward.sampling.outputs import Sampled
from onward.sampling.params import SamplingParams
from onward.sampling.sampler import Sampler
from onward.settings import Settings
from onward.text.assembler import TextRules

STORY = "Once upon a time there was a little fox who lived at the edge of a great wood."
TEXTS = (
    ("abc", "d"),
    ("abc", " the end"),
    ("once upon", " a time and"),
    ("Q: 6*7? A:", " 42"),
    ("naïve 🙂", " cat"),
    ("x" * 300, "y"),
    (STORY * 4 + " The", " fox"),
    (STORY * 4 + " The", " stone was purple"),
    ("The king said", " that he would go"),
    ("She opened the", " door"),
)

Row = tuple[str, str, float, bool]
"""Context, continuation, sum of its log-probabilities, whether each of its tokens is the likeliest."""


def expected_scores(model: str) -> list[Row]:
    """Return a row for each pair of TEXTS, and for the greedy continuation of each.

    Pairs that the tokenizer would merge at the boundary are left out: harnesses split them in different ways.
    """
    runtime, tokenizer = _load(model)
    engine = Engine(runtime, tokenizer, Sampler(runtime.vocab_size))
    numbers = itertools.count()
    rows: list[Row] = []
    for context, continuation in TEXTS:
        prompt = tokenizer.encode(context, add_special_tokens=True)
        likeliest = _score(engine, [*prompt, 97], 1, next(numbers))[0].top[0][0]
        for text in (continuation, tokenizer.token_bytes(likeliest).decode(errors="replace")):
            target = tokenizer.encode(text, add_special_tokens=False)
            if tokenizer.encode(context + text, add_special_tokens=True) != prompt + target:
                continue
            scores = _score(engine, prompt + target, len(target), next(numbers))
            greedy = all(score.logprob == score.top[0][1] for score in scores)
            rows.append((context, text, sum(_as_read(score.logprob) for score in scores), greedy))
    runtime.close()
    assert len(rows) >= 10 and {row[3] for row in rows} == {True, False}, rows
    return rows


def _load(name: str) -> tuple[ModelRunner, Tokenizer]:
    if name == "toy":
        return ToyModel(), ToyTokenizer()
    files, settings = resolve(name).files, Settings()
    options = RuntimeOptions(
        threads=settings.threads, precision=settings.precision, kv_memory=None, cache_dir=settings.cache_dir
    )
    return load_model(files, options, lambda stage: None).model, files.load_tokenizer(settings.cache_dir)


def _score(engine: Engine, ids: list[int], wanted: int, number: int) -> list[Sampled]:
    """Return the scores of the last `wanted` of these ids."""
    engine.add(_job(number, ids))
    scores = None
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Prefilled):
                scores = event.scores
    assert scores is not None and len(scores) == len(ids)
    kept = [score for score in scores[len(ids) - wanted :] if score is not None]
    assert len(kept) == wanted
    return kept


def _as_read(logprob: float) -> float:
    """Return the float64 that the shortest decimal representation of this float32 is parsed to."""
    spelled = float(str(np.float32(logprob)))
    assert np.float32(spelled) == np.float32(logprob)
    return spelled


def _job(number: int, prompt: list[int]) -> Job:
    return Job(
        id=number,
        request=number,
        prompt=tuple(prompt),
        num_choices=1,
        max_tokens=0,
        sampling=SamplingParams(temperature=0.0),
        rules=TextRules(),
        end_tokens=frozenset(),
        score_top=1,
    )
