"""Tabby's completion requests, by its crates/tabby/src/services/completion.rs (0214a92)."""

from __future__ import annotations

from onward.protocol.dialects.decode import Table, table
from onward.protocol.dialects.rows import only, own, same, unused
from onward.protocol.parameter import Parameter

NAME = "tabby"
MAX_DECODING_TOKENS = 64
"""Tabby's own limit of a completion, which requests cannot change."""

SEGMENTS: tuple[Parameter, ...] = (
    own("prefix", "string", NAME, "The text before the cursor.", required=True, example="def fib(n):\n    "),
    own("suffix", "string", NAME, "The text after the cursor.", example="\n"),
    own("declarations", "snippets", NAME, "`{filepath, body}` of declarations that the prefix uses.", max_items=1024),
    own("relevant_snippets_from_changed_files", "snippets", NAME, "Snippets of changed files.", max_items=1024),
    own("relevant_snippets_from_recently_opened_files", "snippets", NAME, "Snippets of opened files.", max_items=1024),
    unused("filepath", "string", NAME, "nothing is looked up in a repository."),
    unused("git_url", "string", NAME, "nothing is looked up in a repository."),
    unused("clipboard", "string", NAME, "Tabby does not put it into the prompt either."),
    only("edit_history", NAME, {}, why="Suggestions of the next edit do not exist here."),
)

COMPLETION: Table = table(
    own("segments", "object", NAME, "The text around the cursor, and snippets of others.", inner=SEGMENTS,
        example={"prefix": "def fib(n):\n    ", "suffix": "\n"}),
    same("temperature", "temperature", NAME, default=0.1),
    same("seed", "seed", NAME),
    same("user", "user", NAME),
    own(
        "debug_options", "object", NAME, "Options of tests.", example={"raw_prompt": "x = "},
        inner=(
            own("raw_prompt", "string", NAME, "A prompt to continue as it is, instead of `segments`.", example="x = "),
            only("return_snippets", NAME, False, why="Only `false` is accepted."),
            only("return_prompt", NAME, False, why="Only `false` is accepted."),
            unused("disable_retrieval_augmented_code_completion", "boolean", NAME, "nothing is retrieved."),
        ),
    ),
    unused("language", "string", NAME, "a completion ends where the model ends it, in all languages."),
    only("mode", NAME, "standard", why="Suggestions of the next edit do not exist here."),
)  # fmt: skip
