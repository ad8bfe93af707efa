"""Renders chat templates, each in a process of its own: what the author of a file wrote cannot end another process."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from functools import cache, partial

import msgspec

from onward.fair_pool import FairPool
from onward.ipc.frames import BrokenFrame, FrameReader, write_frame
from onward.ipc.spawn import Process, spawn
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
    try:
        process = spawn(WORKER)
    except OSError as error:
        raise TemplateError(f"the process that renders chat templates cannot be started: {error.strerror}") from None
    answered, status = _answer(process, msgspec.msgpack.encode(request))
    if answered is None:
        is_slow = sys.platform != "win32" and status in (-signal.SIGPROF, -signal.SIGKILL)
        raise TemplateError(TOO_SLOW if is_slow else TOO_LARGE)
    if answered.problem:
        raise TemplateError(answered.problem)
    return answered.prompt


def _answer(process: Process, request: bytes) -> tuple[Rendered | None, int]:
    """Return what the process answers, None if it ends first, and how it ended, as Popen does."""
    watch = threading.Timer(MAX_SECONDS, process.popen.kill)
    watch.start()
    try:
        write_frame(process.down, request)
        payload = next(iter(FrameReader(process.up)), None)
        return None if payload is None else msgspec.msgpack.decode(payload, type=Rendered), process.popen.wait()
    except (OSError, BrokenFrame, msgspec.MsgspecError):
        return None, process.popen.wait()
    finally:
        watch.cancel()
        process.close()
