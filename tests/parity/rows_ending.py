"""Length and stop: where a completion ends."""

from __future__ import annotations

from .servers import Server
from .table import Area, counts, finishes, text_is

LENGTH = Area("Length", "§2.3")
STOP = Area("Stop", "§2.11")
FREE = {"ignore_eos": True}

LENGTH.served(
    "max_tokens.5",
    "max_tokens limits the completion, with finish_reason length",
    {"max_tokens": 5, **FREE},
    counts(completion_tokens=5),
    finishes("length"),
    golden=(3,),
)
LENGTH.served(
    "max_tokens.0",
    "max_tokens 0: nothing is generated",
    {"max_tokens": 0},
    text_is(""),
    finishes("length"),
    counts(completion_tokens=0, total_tokens=17),
)
LENGTH.served(
    "context.exact",
    "prompt and completion can fill the context exactly",
    {"prompt": "x" * 40, "max_tokens": 2008, "logit_bias": {"256": 100}},
    finishes("stop"),
    golden=(73,),
)
LENGTH.refused(
    "context.over",
    "one more token is rejected, with OpenAI's message and punctuation",
    {"prompt": "x" * 40, "max_tokens": 2009},
    "This model's maximum context length is 2048 tokens, however you requested 2049 tokens (40 in your prompt; "
    "2009 for the completion). Please reduce your prompt; or completion length.",
    golden=(73,),
)
LENGTH.refused(
    "context.default",
    "the default of 16 counts as well",
    {"prompt": [97] * 2040},
    "This model's maximum context length is 2048 tokens, however you requested 2056 tokens (2040 in your prompt; "
    "16 for the completion). Please reduce your prompt; or completion length.",
)
LENGTH.served(
    "end",
    "the model's end token finishes with stop and is not counted",
    {"logit_bias": {"256": 100}},
    text_is(""),
    finishes("stop"),
    counts(completion_tokens=0, total_tokens=17),
    golden=(5,),
    source="behaviour §0.3",
)
LENGTH.served(
    "min_tokens",
    "min_tokens: the completion does not end before",
    {"logit_bias": {"256": 100}, "min_tokens": 3},
    counts(completion_tokens=3),
    finishes("stop"),
    source="behaviour W25",
)
LENGTH.refused(
    "min_tokens.above",
    "min_tokens above max_tokens is rejected",
    {"min_tokens": 5, "max_tokens": 4},
    "Invalid 'min_tokens': integer above maximum value. Expected a value <= 4, but got 5 instead.",
    param="min_tokens",
    code="integer_above_max_value",
    source="behaviour W25",
)
LENGTH.served(
    "ignore_eos",
    "ignore_eos: the end token does not end the completion",
    {"logit_bias": {"256": 100}, "ignore_eos": True, "max_tokens": 4},
    counts(completion_tokens=4),
    finishes("length"),
    source="behaviour W25",
)
LENGTH.served(
    "skip_special.false",
    "skip_special_tokens false: special tokens are in the text",
    {"logit_bias": {"257": 100}, "max_tokens": 2, "skip_special_tokens": False},
    text_is("<|fim_prefix|><|fim_prefix|>"),
    golden=(78,),
    source="behaviour §10",
)
LENGTH.served(
    "skip_special.true",
    "by default, special tokens are not in the text, but are counted",
    {"logit_bias": {"257": 100}, "max_tokens": 2},
    text_is(""),
    counts(completion_tokens=2),
    golden=(78,),
    source="behaviour §10",
)

# --- stop -------------------------------------------------------------------------------------------------------


def greedy(server: Server, length: int = 40) -> str:
    """The greedy continuation without stops."""
    return server.ask(max_tokens=length, **FREE).text


@STOP.law("stop.one", '"stop": two characters of the known continuation', golden=(34, 35))
def stop_cuts(server: Server) -> None:
    """The text ends before the stop string, also if it spans tokens; its tokens are not counted."""
    text = greedy(server)
    stop = text[6:8]
    answer = server.ask(max_tokens=40, stop=stop, **FREE)
    assert answer.text == text[: text.index(stop)] and answer.finish == "stop"
    assert answer.usage["completion_tokens"] == len(server.tokens(answer.text)) == len(answer.text)
    stream = server.stream(max_tokens=40, stop=stop, **FREE)
    assert stream.joined() == answer.text


@STOP.law("stop.first", '"stop": the first character of the known continuation', golden=(5,))
def stop_at_once(server: Server) -> None:
    """After a stop string at the start, the text is empty and no tokens are counted."""
    answer = server.ask(stop=greedy(server)[0])
    assert answer.text == "" and answer.finish == "stop"
    assert answer.usage["completion_tokens"] == 0
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"]


@STOP.law(
    "stop.earliest",
    '"stop": [later in the text, earlier in the text]',
    golden=(39,),
    weak="Only inferred; one other server uses the first of the list.",
)
def earliest_wins(server: Server) -> None:
    """Of several stop strings, the first one in the text wins."""
    text = greedy(server)
    late, early = text[20:23], text[8:10]
    answer = server.ask(max_tokens=40, stop=[late, early], **FREE)
    assert answer.text == text[: min(text.index(late), text.index(early))]


@STOP.law("stop.overlap", '"stop": [a long one, a part of it]', weak="Not recorded.")
def complete_first_wins(server: Server) -> None:
    """Of stop strings that overlap, the first complete one ends the text; of those complete at once, the longest."""
    text = greedy(server)
    for begin, end in ((6, 8), (6, 12), (4, 7)):
        stops = [text[4:12], text[begin:end]]
        cut = min((text.index(stop) + len(stop), text.index(stop)) for stop in stops)[1]
        answer = server.ask(max_tokens=40, stop=stops, **FREE)
        assert (answer.text, answer.finish) == (text[:cut], "stop")
        assert server.stream(max_tokens=40, stop=stops, **FREE).joined() == answer.text


STOP.served("stop.4", "four stop strings are accepted", {"stop": ["1", "2", "3", "4"]}, golden=(36,))
for profile in ("default", "strict"):
    STOP.refused(
        f"stop.5.{profile}",
        f"five are rejected ({profile} profile)",
        {"stop": ["1", "2", "3", "4", "5"]},
        "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 5 "
        "instead.",
        param="stop",
        code="array_above_max_length",
        on=profile,
        golden=(36,),
        source="behaviour W20",
    )
STOP.served(
    "stop.14.lenient",
    "lenient profile: more stop strings",
    {"stop": [f"{n}!" for n in range(14)]},
    on="lenient",
    source="behaviour W20",
)
STOP.same(
    "stop.empty",
    "an empty array means none",
    {"stop": []},
    {},
    golden=(37,),
    source="behaviour W20",
    weak="OpenAI rejected it years ago; lm-eval and Zed send it, so we accept it.",
)
for name, value, path in (("empty_string", "", "stop"), ("empty_item", ["a", ""], "stop[1]")):
    STOP.refused(
        f"stop.{name}",
        "an empty stop is rejected",
        {"stop": value},
        f"Invalid '{path}': empty string. Expected a string with minimum length 1, but got an empty string instead.",
        param=path,
        code="empty_string",
        weak="Not recorded (§12.7).",
    )


@STOP.law("stop.prompt", '"echo": true, "stop": a word of the prompt', golden=(38,))
def stop_in_prompt(server: Server) -> None:
    """A stop string in the echoed prompt has no effect."""
    answer = server.ask(echo=True, stop="Say", max_tokens=4, **FREE)
    assert answer.text.startswith("Say this is a test") and len(answer.text) > 18


@STOP.law("stop.stream", '"stop": …, "stream": true', golden=(40,))
def nothing_retracted(server: Server) -> None:
    """A stream never sends text that a stop string would remove."""
    text = greedy(server)
    for start in range(4, 16):
        stop = text[start : start + 3]
        cut = text[: text.index(stop)]
        stream = server.stream(max_tokens=40, stop=stop, **FREE)
        assert stream.joined() == cut
        almost = server.stream(max_tokens=40, stop=stop[:2] + "\u2603", **FREE)
        assert almost.joined() == text


@STOP.law("stop.included", '"stop": …, "include_stop_str_in_output": true', golden=(41,), source="behaviour §10")
def stop_included(server: Server) -> None:
    """include_stop_str_in_output keeps the stop string at the end."""
    text = greedy(server)
    stop = text[6:8]
    answer = server.ask(max_tokens=40, stop=stop, include_stop_str_in_output=True, **FREE)
    assert answer.text == text[: text.index(stop) + 2] and answer.finish == "stop"


@STOP.law("stop.at_limit", '"max_tokens": exactly up to the stop', source="behaviour §3")
def stop_beats_length(server: Server) -> None:
    """A stop string that is complete at the last allowed token finishes with stop."""
    text = greedy(server)
    at = next(n for n in range(3, 30) if text[n] not in text[:n])
    assert server.ask(max_tokens=at + 1, stop=text[at], **FREE).finish == "stop"


STOP.served(
    "stop.special",
    "the text of the end token can be a stop string",
    {"stop": ["<|endoftext|>"], "logit_bias": {"256": 100}},
    finishes("stop"),
    text_is(""),
    source="behaviour §5",
)
