"""The other side of `worker`: one disposable process, and what ended it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly

import msgspec

from onward.constraints.process.messages import Encode, Encoded, WorkerReply, WorkerRequest, decode_reply, encode
from onward.ipc.disposable import DisposableProcess, ProcessLost

WORKER = (sys.executable, "-P", "-m", "onward.constraints.process.worker")
"""-P: a folder named onward in the working directory is not imported."""
MAX_SECONDS = 20.0
"""How long an answer may take on a busy machine; processor time is limited by `worker`."""
MAX_LOAD_SECONDS = 300.0

TOO_SLOW = "it takes too long to compute; make it simpler"
TOO_LARGE = "it is too complex to compute: it exceeds the memory, or the library's stack; make it simpler"


class GrammarProcess(DisposableProcess):
    """A process that computes grammars. `answer` returns the tokens of a text, where the process may ask for them."""

    def __init__(self, command: ReadOnly[str] = WORKER, answer: Callable[[str], list[int]] | None = None) -> None:
        super().__init__(command, "computes grammars")
        self._answer = answer

    def call(self, request: WorkerRequest, seconds: float = MAX_SECONDS) -> WorkerReply:
        """Return the answer to a request. Raises ProcessLost, whose message says why to whoever sent the grammar: the
        process is gone then, and the next call starts another one."""
        try:
            reply: WorkerReply = decode_reply(self.ask(encode(request), seconds))
            while isinstance(reply, Encode):
                tokens = self._answer(reply.text) if self._answer else []
                reply = decode_reply(self.go_on(encode(Encoded(tokens)), seconds))
            return reply
        except ProcessLost as lost:
            reason = TOO_SLOW if lost.was_slow else TOO_LARGE
            raise ProcessLost(reason, was_slow=lost.was_slow, was_killed=lost.was_killed) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._abandon()
            raise ProcessLost(TOO_LARGE) from None
        except BaseException:  # of the tokenizer: the process would take the next request for the answer
            self._abandon()
            raise

    def _abandon(self) -> None:
        self.kill()
        self.close()

    def tell(self, request: WorkerRequest) -> None:
        """Send what is not answered; ignored if there is no process."""
        self.send(encode(request))
