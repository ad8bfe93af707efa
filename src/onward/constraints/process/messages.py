"""What passes between a process that uses grammars and the disposable one that has the library."""

from __future__ import annotations

import msgspec


class Check(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Compile a grammar for the vocabulary of all bytes, and take its first steps. Answered by Checked.

    `schema` is the text of a JSON schema, of which the grammar is made first; None: `grammar` is one. `whitespace` is
    as for `json_schema.json_schema_grammar`. With `references`, the grammar is as a client wrote it, in GBNF or Lark,
    as for `grammar.text_grammar`.
    """

    grammar: str
    schema: str | None = None
    whitespace: str | None = None
    references: dict[str, tuple[str, str]] | None = None


class Checked(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The grammar that can be used, or the `problem` for which there is none."""

    grammar: str
    problem: str = ""


class Load(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The vocabulary of a model: the bytes of each token, and those that never spell text. Answered by Loaded."""

    token_bytes: list[bytes]
    control: list[int]


class Loaded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The vocabulary is loaded."""


class Compile(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Compile a grammar for the loaded vocabulary, under a number of the caller's. Answered by CompiledGrammar."""

    number: int
    grammar: str
    end_tokens: list[int]


class CompiledGrammar(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The packed masks of a choice without tokens, or why the grammar cannot be used. `seconds`: of processor time."""

    masks: bytes
    problem: str = ""
    seconds: float = 0.0


class Advance(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Take tokens of a choice, which begins with the first ones. Answered by Advanced."""

    choice: int
    grammar: int
    tokens: list[int]


class Advanced(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What may follow, as `choice.Outcome`: packed masks for the next token and after each of `forced`."""

    masks: bytes
    forced: list[int]
    completes: bool
    problem: str = ""
    seconds: float = 0.0


class Forget(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Choices and grammars that are used no more. Not answered."""

    choices: list[int]
    grammars: list[int]


class Encode(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A question of the disposable process while it computes: the tokens of a text. Answered by Encoded."""

    text: str


class Encoded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The tokens of a text, without a start token."""

    tokens: list[int]


WorkerRequest = Check | Load | Compile | Advance | Forget | Encoded
WorkerReply = Checked | Loaded | CompiledGrammar | Advanced | Encode

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(WorkerRequest).decode
decode_reply = msgspec.msgpack.Decoder(WorkerReply).decode
