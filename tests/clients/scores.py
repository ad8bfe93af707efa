"""What an evaluation must get: log-probabilities taken from the engine itself, below every layer of the API."""

from __future__ import annotations

import numpy as np

from onward.engine.events import Prefilled
from onward.engine.job import Job
from onward.engine.step import Engine
from onward.runtimes.toy import ToyModel, ToyTokenizer
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules

TEXTS = (
    ("abc", "d"),
    ("abc", " the end"),
    ("once upon", " a time and"),
    ("Q: 6*7? A:", " 42"),
    ("naïve 🙂", " cat"),
    ("x" * 300, "y"),
    ("shared prefix " * 20 + "of", " one"),
    ("shared prefix " * 20 + "of", " two"),
)


def expected_scores() -> list[tuple[str, str, float, bool]]:
    """(context, continuation, sum of log-probabilities, is_greedy) for each pair, and for its greedy twin."""
    engine, tokenizer = Engine(ToyModel(), ToyTokenizer()), ToyTokenizer()
    rows = []
    for number, (context, continuation) in enumerate(TEXTS):
        greedy = _greedy(engine, tokenizer, context, 1000 + number)
        for twin, text in enumerate((continuation, greedy)):
            prompt = tokenizer.encode(context, add_special_tokens=True)
            target = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.encode(context + text, add_special_tokens=True) == prompt + target, (context, text)
            rows.append((context, text, *_score(engine, prompt, target, 2 * number + twin)))
    return rows


def _score(engine: Engine, prompt: list[int], target: list[int], number: int) -> tuple[float, bool]:
    engine.add(_job(number, prompt + target, 0, score_top=1))
    scores = None
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Prefilled):
                scores = event.scores
    assert scores is not None
    kept = [score for score in scores[len(prompt) :] if score is not None]
    assert len(kept) == len(target)
    greedy = all(score.logprob == score.top[0][1] for score in kept)
    return sum(_as_read(score.logprob) for score in kept), greedy


def _as_read(logprob: float) -> float:
    """What a reader of the shortest decimal spelling of this float32 gets; no bit of the float32 is lost."""
    spelled = float(str(np.float32(logprob)))
    assert np.float32(spelled) == np.float32(logprob)
    return spelled


def _greedy(engine: Engine, tokenizer: ToyTokenizer, context: str, number: int) -> str:
    """The likeliest next token, by scoring every printable one."""
    prompt = tokenizer.encode(context, add_special_tokens=True)
    best = max(
        range(97, 123),
        key=lambda token: _score(engine, prompt, [token], number * 1000 + token)[0],
    )
    return tokenizer.token_bytes(best).decode()


def _job(number: int, prompt: list[int], max_tokens: int, score_top: int) -> Job:
    return Job(
        id=number,
        request=number,
        prompt=tuple(prompt),
        choices=1,
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature=0.0, logprobs=score_top),
        rules=TextRules(),
        end_tokens=frozenset({256}),
        score_top=score_top,
    )
