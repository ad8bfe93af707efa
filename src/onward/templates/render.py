"""Renders chat templates, each in a process of its own: what the author of a file wrote cannot end another process."""

from __future__ import annotations

import asyncio
import sys
from functools import cache, partial

import msgspec

from onward.fair_pool import FairPool
from onward.ipc.disposable import DisposableProcess, ProcessLost
from onward.offload import owner

WORKER = (sys.executable, "-P", "-m", "onward.templates.worker")
"""-P: a folder named onward in the working directory is not imported."""
MAX_SECONDS = 20.0
"""How long a process may take on a busy machine; its processor time is limited by `worker`."""
MAX_PROCESSES = 2
"""At a time; a client has one."""
TOO_SLOW = "the model's chat template takes too long"
TOO_LARGE = "the model's chat template needs more memory, or nesting, than it may have"


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A turn of a conversation."""

    role: str
    content: str


class Render(msgspec.Struct, frozen=True, array_like=True):
    """A Jinja2 template and its arguments. `add_generation_prompt`: end where the model's answer begins."""

    template: str
    messages: list[Message]
    bos_token: str
    eos_token: str
    add_generation_prompt: bool


class Rendered(msgspec.Struct, frozen=True, array_like=True):
    """A prompt, or the sentence that says why there is none."""

    prompt: str
    problem: str = ""


class TemplateError(Exception):
    """A template cannot be rendered. The message, without a full stop, says why to whoever sent the conversation."""


async def render(request: Render) -> str:
    """Return the prompt that a template makes. Clients take turns. Raises TemplateError."""
    return await asyncio.wrap_future(_processes().submit(owner.get(), partial(_render, request)))


@cache
def _processes() -> FairPool:
    return FairPool("onward-templates", MAX_PROCESSES, 1)


def _render(request: Render) -> str:
    process = DisposableProcess(WORKER, "renders chat templates")
    try:
        answer = msgspec.msgpack.decode(process.ask(msgspec.msgpack.encode(request), MAX_SECONDS), type=Rendered)
    except OSError as error:
        raise TemplateError(f"the process that renders chat templates cannot be started: {error.strerror}") from None
    except ProcessLost as lost:
        raise TemplateError(TOO_SLOW if lost.was_slow else TOO_LARGE) from None
    except msgspec.MsgspecError:  # a template that has left the sandbox may answer anything
        raise TemplateError(TOO_LARGE) from None
    finally:
        process.close()
    if answer.problem:
        raise TemplateError(answer.problem)
    return answer.prompt
