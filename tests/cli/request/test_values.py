"""Each documented invocation of OpenAI's command line sends the documented JSON; ordinary sentences stay text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.api.openai.parameters import BY_NAME, PARAMETERS
from onward.cli.request.contents import STDIN_NAMES, Stdin
from onward.cli.request.flags import HELP, click_options, complete_bare_booleans, request_flags
from onward.cli.request.values import value_of
from onward.cli.request.yaml12 import NotYaml, dump, load
from tests.examples import UNICODE, examples

from ..conftest import create, onward


def body(*arguments: str, stdin: str | bytes | None = None) -> dict[str, Any]:
    """The JSON body that the arguments send; a prompt is added where they have none."""
    prompt = () if any(each.startswith(("--prompt", "-p")) for each in arguments) or stdin else ("--prompt", "p")
    result = create(*arguments, *prompt, "--dry-run", "--format", "json", stdin=stdin)
    assert result.exit_code == 0, result.output
    sent: dict[str, Any] = json.loads(result.stdout)
    if prompt:
        assert sent.pop("prompt") == "p"
    return sent


TABLE = [
    (["--prompt", "This is a test."], {"prompt": "This is a test."}),
    (["--prompt", "[1,2,3]"], {"prompt": [1, 2, 3]}),
    (["--prompt", "[[1,2],[3]]"], {"prompt": [[1, 2], [3]]}),
    (["--prompt", '["a","b"]'], {"prompt": ["a", "b"]}),
    (["--prompt", "[a, b]"], {"prompt": ["a", "b"]}),
    (["--prompt", '"[1,2]"'], {"prompt": "[1,2]"}),
    (["--prompt", "@story.txt"], {"prompt": "Once upon\n"}),
    (["--stop", '"\\n"'], {"stop": "\n"}),
    (["--stop", "\\n"], {"stop": "\\n"}),
    (["--stop", '["\\n", END]'], {"stop": ["\n", "END"]}),
    (["--stop", "a", "--stop", '["b", "\\n"]', "--stop", "c"], {"stop": ["a", "b", "\n", "c"]}),
    (["--options.stop", "a", "--options.stop", "b"], {"options": {"stop": ["a", "b"]}}),
    (["--logit-bias", '{"50256": -100}'], {"logit_bias": {"50256": -100}}),
    (["--logit-bias", "{50256: -100}"], {"logit_bias": {"50256": -100}}),
    (["--logit-bias", "{foo: 0}"], {"logit_bias": {"foo": 0}}),
    (["--stream-options", "{include_usage: true}"], {"stream_options": {"include_usage": True}}),
    (["--stream-options.include-usage"], {"stream_options": {"include_usage": True}}),
    (["--stream-options.include-usage=false"], {"stream_options": {"include_usage": False}}),
    (["--max-tokens", "null"], {"max_tokens": None}),
    (["--stream-options", "null"], {"stream_options": None}),
]
ALSO = [
    (["--echo"], {"echo": True}),
    (["--echo", "true"], {"echo": True}),
    (["--echo=false"], {"echo": False}),
    (["--echo", "null"], {"echo": None}),
    (["--stream", "--echo", "--n", "2"], {"stream": True, "echo": True, "n": 2}),
    (["--seed", "0x10"], {"seed": 16}),
    (["--seed", "-5"], {"seed": -5}),
    (["--temperature", "0.5"], {"temperature": 0.5}),
    (["--temperature", "1"], {"temperature": 1}),
    (["--top-p", "1e-2"], {"top_p": 0.01}),
    (["--user", "null-ish"], {"user": "null-ish"}),
    (["--user", "[1]"], {"user": "[1]"}),
    (["--model", "null"], {"model": "null"}),
    (["--top-k", "40", "--min-p", "0.1", "--ignore-eos"], {"top_k": 40, "min_p": 0.1, "ignore_eos": True}),
    (
        ["--stream-options", "{include_usage: false}", "--stream-options.include-usage"],
        {"stream_options": {"include_usage": True}},
    ),
    (["-m", "x", "-M", "8", "-t", "0", "-P", "0.5", "-n", "3"],
     {"model": "x", "max_tokens": 8, "temperature": 0, "top_p": 0.5, "n": 3}),
    (["--max_tokens", "8", "--top_p", "0.5", "--best_of", "2"], {"max_tokens": 8, "top_p": 0.5, "best_of": 2}),
    (["--options", "{num_predict: 5}", "--options.top-k", "0"], {"options": {"num_predict": 5, "top_k": 0}}),
    (["--suffix", "@story.txt"], {"suffix": "Once upon\n"}),
    (["--prompt", '["@story.txt", "\\\\@x"]'], {"prompt": ["Once upon\n", "@x"]}),
    (["--prompt", "@file://story.txt"], {"prompt": "Once upon\n"}),
    (["--prompt", "@data://story.txt"], {"prompt": "T25jZSB1cG9uCg=="}),
    (["--prompt", "@data://binary.bin"], {"prompt": "/wAB"}),
    (["--prompt", "@nul.txt"], {"prompt": "a\0b"}),
    (["--prompt", "\\@home"], {"prompt": "@home"}),
    (["--prompt", "@everyone"], {"prompt": "@everyone"}),
    (["--prompt", "null"], {"prompt": None}),
    (["--prediction", "@story.txt"], {"prediction": {"type": "content", "content": "Once upon\n"}}),
    (["--prediction", "Q: why?"], {"prediction": {"type": "content", "content": "Q: why?"}}),
    (["--prediction", '"a\\nb"'], {"prediction": {"type": "content", "content": "a\nb"}}),
    (["--prediction", "[1, 2]"], {"prediction": {"type": "content", "content": "[1, 2]"}}),
    (["--prediction", "\\@home"], {"prediction": {"type": "content", "content": "@home"}}),
    (["--prediction", '{type: content, content: "@story.txt"}'],
     {"prediction": {"type": "content", "content": "Once upon\n"}}),
    (["--prediction", '{"type": "content", "content": [{"type": "text", "text": "@story.txt"}]}'],
     {"prediction": {"type": "content", "content": [{"type": "text", "text": "Once upon\n"}]}}),
    (["--prediction", "null"], {"prediction": None}),
    (["--json-schema", "{type: object}"], {"json_schema": {"type": "object"}}),
    (["--json-schema", '{"const": "@story.txt"}'], {"json_schema": {"const": "Once upon\n"}}),
    (["--json-schema", "@story.txt"], {"json_schema": "Once upon\n"}),
    (["--response-format", "json_object"], {"response_format": {"type": "json_object"}}),
    (["--response-format", "{type: json_schema, json_schema: {schema: {}}}"],
     {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
    (["--choice", "yes", "--choice", "no"], {"choice": ["yes", "no"]}),
    (["--choice", "[a, b]"], {"choice": ["a", "b"]}),
    (["--stop", "[END]"], {"stop": "[END]"}),
    (["--stop", "[/INST]"], {"stop": "[/INST]"}),
    (["--stop", '["END"]'], {"stop": ["END"]}),
    (["--stop", "[a, b]"], {"stop": ["a", "b"]}),
    (["--stop", "[]"], {"stop": []}),
    (["--choice", "[END]"], {"choice": ["[END]"]}),
    (["--grammar", "@story.txt"], {"grammar": "Once upon\n"}),
    (["--regex", "[0-9]{3}"], {"regex": "[0-9]{3}"}),
    (["--json-object"], {"json_object": True}),
]  # fmt: skip
TRAPS = [
    "Q: why?", "42", "1.5", "true", "# x", "", "- a", "*x", "yes", "~", "a: b\nc: d", "two\nlines", " spaces ",
    "[INST] do it [/INST]", "[END]", "[INST]", "[ x ]",
    "[Scene: dark]", "{a: b}", '"Hello," she said', '"Hi" # said he', "['a', 1]", "[1.5]",
    "[1, a]", "'tis", "!x", "%TAG", "`x`", "2026-01-01", "[true]", "[null]", "{", "[", '"', "&a [*a]",
]  # fmt: skip


@pytest.fixture(autouse=True)
def files(tmp_path: Path, clean_environment: None) -> None:
    (tmp_path / "story.txt").write_text("Once upon\n", encoding="utf-8")
    (tmp_path / "binary.bin").write_bytes(b"\xff\0\1")
    (tmp_path / "nul.txt").write_bytes(b"a\0b")
    (tmp_path / "latin1.txt").write_bytes("café".encode("latin-1"))


@pytest.mark.parametrize(("arguments", "expected"), [*TABLE, *ALSO], ids=lambda value: " ".join(map(str, value))[:50])
def test_the_documented_invocations_send_the_documented_json(arguments: list[str], expected: dict[str, Any]) -> None:
    sent = body(*arguments)
    assert sent == expected
    for key, value in expected.items():
        assert type(sent[key]) is type(value)


@pytest.mark.parametrize("text", TRAPS)
def test_a_text_that_only_looks_like_yaml_stays_a_text(text: str) -> None:
    assert body("--prompt", text) == {"prompt": text}


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(
        lambda text: text not in STDIN_NAMES and not text.startswith(("@", "\\@"))
    )
)
@settings(max_examples=examples(150))
def test_a_prompt_is_itself_or_a_documented_type_written_as_one(text: str) -> None:
    sent = value_of(BY_NAME["prompt"], text, Stdin())
    if sent != text:
        assert sent is None or text.strip()[:1] in "['\""


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(UNICODE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(UNICODE), inner, max_size=3), max_leaves=6,
))  # fmt: skip
@settings(max_examples=examples(100))
def test_json_is_parsed_unchanged(value: Any) -> None:
    assert load(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[yes, on, no]", ["yes", "on", "no"]),
        ("[012, 0o17, 0x1F, 1:30]", [12, 15, 31, "1:30"]),
        ("[1_000, 2001-01-01, .5, 1.]", ["1_000", "2001-01-01", 0.5, 1.0]),
        ("[~, null, True, FALSE, '1']", [None, None, True, False, "1"]),
        ("{1: a, true: b}", {"1": "a", "true": "b"}),
        ("", None),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: Any) -> None:
    assert load(text) == value


@pytest.mark.parametrize("text", ["*x", "[1, 2", "&a [*a]", "{[1]: 2}", "a: b: c", "--- a\n--- b", "\x00"])
def test_text_that_is_not_one_document_is_rejected(text: str) -> None:
    with pytest.raises(NotYaml):
        load(text)


def test_yaml_is_parsed_as_written() -> None:
    value = {"choices": [{"text": "a: b\n", "index": 0, "logprobs": None}], "model": "yes"}
    assert load(dump(value)) == value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-tokens", "many"], "Invalid value 'many' for --max-tokens: it must be an integer or null"),
        (["--seed", "010"], "write 10 or 0o"),
        (["--temperature", "nan"], "it must be a number or null"),
        (["--echo=maybe"], "it must be true, false or null"),
        (["--logit-bias", "5"], "it must be an object"),
        (["--prompt", "@missing.txt"], "missing.txt cannot be read"),
        (["--stop", "a", "--stop", "null"], "--stop null cannot be combined"),
        (["--prompt", "@no/such.txt"], "no/such.txt cannot be read"),
        (["--prompt", "@file://binary.bin"], "--prompt: binary.bin is not UTF-8 text (invalid start byte at byte 0)"),
        (["--prompt", "@latin1.txt"], "--prompt: latin1.txt is not UTF-8 text (unexpected end of data at byte 3)"),
        (["--prompt", "@latin1.txt"], "Use @data://latin1.txt to send its bytes as base64."),
        (["--prompt", "a", "--suffix", "@latin1.txt"], "--suffix: latin1.txt is not UTF-8 text"),
        (["--prompt", "a", "--prediction", "@binary.bin"], "--prediction: binary.bin is not UTF-8 text"),
        (["--prompt", "a", "b"], "passed twice"),
        (["--temprature", "5"], "--temperature"),
        (["one", "two"], "unexpected extra argument"),
        (["--format", "exploded"], "'exploded' is not one of"),
        (["--prompt", "-", "--suffix", "@-"], "Standard input can be read only once"),
        ([], 'Required flag "prompt" not set'),
    ],
)
def test_values_that_contradict_each_other_are_usage_errors(arguments: list[str], words: str) -> None:
    result = create(*arguments, "--dry-run")
    assert result.exit_code == 2, result.output
    assert words in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("piped", "arguments", "expected"),
    [
        ("hi\n", [], {"prompt": "hi\n"}),
        ("Q: why?\n", [], {"prompt": "Q: why?\n"}),
        ("user: hi\n", [], {"prompt": "user: hi\n"}),
        ("[1, 2]", [], {"prompt": "[1, 2]"}),
        ("hi", ["--prompt", "-"], {"prompt": "hi"}),
        ("hi", ["--prompt", "@-"], {"prompt": "hi"}),
        ("hi", ["-"], {"prompt": "hi"}),
        ("hi", ["-p", "x", "--suffix", "@-"], {"prompt": "x", "suffix": "hi"}),
        ('{"prompt": "a", "n": 2}', [], {"prompt": "a", "n": 2}),
        ('{"prompt": "a", "n": 2}', ["-n", "3"], {"prompt": "a", "n": 3}),
        ('{"surprise": 1}', ["-p", "a"], {"prompt": "a", "surprise": 1}),
        ("top_k: 5", ["-p", "a"], {"prompt": "a", "top_k": 5}),
        ("prompt: a\ntop_k: 5\n", [], {"prompt": "a", "top_k": 5}),
        ('{"prompt": "@story.txt"}', [], {"prompt": "@story.txt"}),
    ],
)
def test_what_is_piped_in_is_a_body_or_the_prompt(piped: str, arguments: list[str], expected: dict[str, Any]) -> None:
    assert body(*arguments, stdin=piped) == expected


@pytest.mark.parametrize(
    ("piped", "problem"),
    [
        ('{"prompt": "Once", "n": 3, ', "it is not a JSON object (line 1, column 28: Expecting property name"),
        ('\n{"prompt": "Once"} {}', "it is not a JSON object (line 2, column 20: Extra data)"),
        ('{"seed": 1' + 5000 * "0" + "}", "it is not a JSON object (a number has too many digits)"),
        ("{% if it %}", "it is not a JSON object (line 1, column 2: "),
        ("prompt: Once\nmax_tokns: 3\n", "'max_tokns' is not a parameter (did you mean 'max_tokens'?)"),
        ("max_tokens: 3\n", "it has no prompt"),
        ("prompt: Once: upon\nn: 3\n", "it is not valid YAML"),
    ],
)
def test_a_piped_text_that_looks_like_a_body_is_the_prompt_with_a_note(piped: str, problem: str) -> None:
    result = create("--dry-run", stdin=piped)
    assert json.loads(result.stdout) == {"prompt": piped}
    assert result.stderr.startswith(f"Standard input looks like a request body, but {problem}")
    assert result.stderr.endswith("; using all of it as the prompt.\n")
    assert create("--dry-run", "--prompt", "-", stdin=piped).stderr == ""


def test_a_malformed_body_next_to_a_prompt_is_reported_with_its_problem() -> None:
    result = create("--dry-run", "--prompt", "a", stdin='{"n": 3, ')
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert (
        "It looks like a request body, but it is not a JSON object (line 1, column 10: Expecting property name" in said
    )


@pytest.mark.parametrize("text", ["Q: why?\n", "Once upon a time: [", "[1, 2]", "note: prompt: n: 3", "hi"])
def test_a_piped_text_that_looks_like_no_body_needs_no_note(text: str) -> None:
    assert create("--dry-run", stdin=text).stderr == ""


def test_the_error_for_a_missing_prompt_names_unknown_keys() -> None:
    result = create("--dry-run", stdin='{"promt": "Once", "max_tokens": 3, "zzz": 1}')
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert (
        "In the request body on standard input, 'promt' is not a parameter (did you mean 'prompt'?), "
        "'zzz' is not a parameter." in said
    )
    assert "In what is piped in" not in create("--dry-run", stdin='{"max_tokens": 3}').stderr


@pytest.mark.parametrize(("flag", "text"), [("--stop", '["a"'), ("--stop", "['a', 1]"), ("--prompt", '["a", "b"')])
def test_a_text_that_begins_like_a_list_of_texts_is_noted(flag: str, text: str) -> None:
    result = create("--dry-run", flag, text, *(("--prompt", "p") if flag == "--stop" else ()))
    assert json.loads(result.stdout)[flag.removeprefix("--")] == text
    assert result.stderr == f"{flag}: {text} starts like a list of strings but is not one; using it as literal text.\n"


def test_a_list_and_a_text_in_brackets_need_no_note() -> None:
    for stop in ('["a"]', "[INST]", "[", '"["'):
        assert create("--dry-run", "p", "--stop", stop).stderr == ""


def test_a_prediction_may_be_piped_in() -> None:
    sent = body("-p", "x", "--prediction", "@-", stdin="old\n")
    assert sent == {"prompt": "x", "prediction": {"type": "content", "content": "old\n"}}


def test_a_piped_text_and_a_prompt_together_are_refused() -> None:
    result = create("-p", "a", "--dry-run", stdin="some text")
    assert result.exit_code == 2
    assert "Cannot merge flags with a body that is not a map: 'some text'" in result.stderr


def test_a_piped_prompt_must_be_text() -> None:
    result = create("--dry-run", stdin=b"\xff\xfe")
    assert result.exit_code == 2
    assert "standard input is not UTF-8 text" in result.stderr


def test_every_parameter_but_the_link_has_a_flag() -> None:
    expected = [row.name for row in PARAMETERS if row.kind != "link"]
    assert [flag.path[0] for flag in request_flags() if len(flag.path) == 1] == expected
    inner = {flag.path for flag in request_flags() if len(flag.path) == 2}
    assert inner == {(row.name, each.name) for row in PARAMETERS for each in row.inner}


def test_the_help_shows_every_parameter_with_its_words() -> None:
    shown = " ".join(create("--help").stdout.split())
    for flag in request_flags():
        if not flag.is_compatibility_flag:
            assert flag.flag in shown
            assert " ".join(flag.help.split())[:30] in shown.replace("- ", "-")


def test_the_help_claims_nothing_that_only_the_api_does() -> None:
    shown = " ".join(create("--help").stdout.split())
    assert "Without a prompt, the model begins a new document" not in shown
    assert "null starts a new document" in shown
    assert "required with --base-url or OPENAI_BASE_URL" in shown
    assert set(HELP) <= set(BY_NAME)


def test_the_word_after_a_bare_boolean_is_a_prompt() -> None:
    assert body("--echo", "--prompt", "x") == {"prompt": "x", "echo": True}
    assert complete_bare_booleans(["--echo", "Once", "--", "--echo"], click_options()) == [
        "--echo=true", "Once", "--", "--echo",
    ]  # fmt: skip
    assert complete_bare_booleans(["--prompt", "--echo"], click_options()) == ["--prompt", "--echo"]


def test_global_flags_may_stand_before_the_command() -> None:
    for arguments in (
        ["--format", "jsonl", "completions", "create", "-p", "a", "--dry-run"],
        ["completions", "--format=jsonl", "create", "-p", "a", "--dry-run"],
        ["-r", "--debug", "completions", "create", "-p", "a", "--dry-run", "--format", "jsonl"],
        [
            "--api-key",
            "k",
            "completions",
            "--base-url",
            "http://x",
            "create",
            "-p",
            "a",
            "--dry-run",
            "--format",
            "jsonl",
        ],
    ):
        result = onward(*arguments)
        assert (result.exit_code, result.stdout) == (0, '{"prompt":"a"}\n'), result.output


def test_a_base_url_without_a_scheme_is_a_usage_error() -> None:
    result = create("-p", "a", "--base-url", "localhost:8000")
    assert result.exit_code == 2
    assert '--base-url "localhost:8000" is missing a scheme (expected http:// or https://)' in result.stderr


def test_a_text_that_may_have_meant_a_file_is_noted() -> None:
    result = create("--prompt", "@everyone", "--dry-run")
    assert json.loads(result.stdout) == {"prompt": "@everyone"}
    assert result.stderr == (
        "--prompt: there is no file everyone; using @everyone as text. Write \\@everyone to silence this note.\n"
    )
    assert create("--prompt", "\\@everyone", "--dry-run").stderr == ""


def test_a_lone_surrogate_in_a_body_is_escaped() -> None:
    result = create("--dry-run", "--format", "raw", stdin='{"prompt": "\\ud800"}')
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"prompt": "\ud800"})
