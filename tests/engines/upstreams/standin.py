"""A stand-in for llama-server, vLLM and SGLang: their requests and answers over the toy's vocabulary, with faults.

vLLM and SGLang cannot run where the tests do: their parts are written from the request and response types in their
sources and documentation (entrypoints/openai/completion/protocol.py and serving.py, 2026-08; basic_usage of SGLang).
"""

from __future__ import annotations

import codecs
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from onward.model_files.toy import END, ToyTokenizer
from tests.waiting import PATIENCE_SECONDS

TOKENIZER = ToyTokenizer()
CONTEXT = 512
Script = Callable[[Sequence[int]], int]
"""From all tokens so far to the next one."""
Fault = Callable[["Handler", dict[str, Any]], None]
"""Answers a request in a way of its own."""


def spelling(text: str, prompt_length: int) -> Script:
    """Spell a text byte by byte after a prompt of this length, then end."""
    content = text.encode()
    return lambda tokens: content[len(tokens) - prompt_length] if len(tokens) - prompt_length < len(content) else END


def is_incomplete(content: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(content)
    return bool(decoder.getstate()[0])


class StandIn:
    """A server on a port of its own. `faults`: the faults of the next completions, in order, "" for none; "down" is
    that of the next request of any kind. `described`: what is answered instead, by path."""

    def __init__(self, kind: str, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.kind = kind
        self.script: Script = lambda tokens: ord("a") + len(tokens) % 26
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        """Of those requests."""
        self.faults: list[str | Fault] = []
        self.described: dict[str, Any] = {}
        self.build = "b1"
        self.adds_space = False
        self.reports_all = False
        """Whether vLLM reports the log-probability of every token, which is asked for at the start."""
        self.vocab_size = TOKENIZER.size
        self.num_asked_for_all = 0
        self.end_of_grammars: int | None = 1
        """With what vLLM ends an empty text by a grammar; None: it takes no grammars."""
        self.idle = threading.Event()
        """That answer waits for it, as behind other requests, and SGLang's health does."""
        self.idle.set()
        self.num_cached: int | None = None
        """What vLLM's usage says."""
        self.is_unhealthy = False
        self.lists_slots = True
        """Not with llama-server's `--no-slots`."""
        self.is_incremental = False
        self.is_deterministic = False
        """SGLang's mode in which it uses seeds."""
        self.overlaps = False
        """Whether SGLang's penalties count a token one step too late."""
        self.connections: list[socket.socket] = []
        """All that were opened."""
        self.num_sent = 0
        """Bytes that `Handler.send_endlessly` got rid of."""
        self.was_left = threading.Event()
        """Set when a client closed its connection before the end of its answer."""
        self.release = threading.Event()
        """Lets requests with the fault "hang" continue."""
        stand_in = self

        class Own(Handler):
            server_state = stand_in

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # a batch of prompts connects at once

        self._server = Server(("127.0.0.1", port), Own)
        self._server.daemon_threads = True
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, and cut all connections."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.release.set()  # only now, so that nothing that waits is still answered

    def tokens_of(self, body: dict[str, Any]) -> Iterator[int]:
        """The tokens that a request generates, up to and with the end token."""
        tokens = list(body["prompt"])
        biases = {token: value for token, value in body["logit_bias"] if value is not False}
        banned = {token for token, value in body["logit_bias"] if value is False}
        greatest = max(biases.values(), default=0)
        preferred = sorted(token for token, value in biases.items() if value == greatest >= 1000)
        for _ in range(body["n_predict"]):
            token = self.script(tokens)
            if preferred and token not in preferred:
                token = preferred[0]
            while token in banned:
                token = ord("z") if token == END and ord("z") not in banned else (token + 1) % TOKENIZER.size
            yield token
            tokens.append(token)
            if token == END:
                return


class Handler(BaseHTTPRequestHandler):
    server_state: StandIn
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    is_spent = False
    """Whether the next request here gets no answer: llama-server closes a connection after a stream, unannounced."""

    def setup(self) -> None:
        super().setup()
        self.server_state.connections.append(self.connection)

    def handle(self) -> None:
        with suppress(OSError):  # it was cut
            super().handle()

    def parse_request(self) -> bool:
        if self.is_spent:
            self.close_connection = True
            return False
        return super().parse_request()

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        state = self.server_state
        if "down" in state.faults[:1]:
            state.faults.pop(0)
            self.send_error(503)
            return
        if self.path == "/health":
            if state.kind == "sglang":
                state.idle.wait(PATIENCE_SECONDS)
            if state.is_unhealthy:
                self.send_error(503)
            else:
                self.send_json({})
        elif self.path in state.described:
            self.send_json(state.described[self.path])
        elif self.path == "/props":
            settings = {"n_ctx": CONTEXT}
            self.send_json({"default_generation_settings": settings, "total_slots": 2, "build_info": state.build})
        elif self.path == "/get_model_info":
            self.send_json({"model_path": "org/name", "weight_version": state.build})
        elif self.path == "/get_server_info":
            modes = {"enable_deterministic_inference": state.is_deterministic}
            self.send_json(modes | {"disable_overlap_schedule": not state.overlaps, "version": state.build})
        elif self.path == "/slots" and not state.lists_slots:
            self.send_error(501)
        elif self.path == "/slots":
            state.script([0])  # the engine itself has to answer
            self.send_json([])
        elif self.path == "/version":
            self.send_json({"version": state.build})
        else:
            meta = {"n_vocab": TOKENIZER.size, "size": 1}
            self.send_json({"data": [{"id": "served", "root": "org/name", "max_model_len": CONTEXT, "meta": meta}]})

    def do_POST(self) -> None:
        state = self.server_state
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path in state.described:
            self.send_json(state.described[self.path])
            return
        if self.path == "/tokenize":
            space = " " if state.adds_space else ""
            text = space + str(body.get("content", body.get("prompt")))
            self.send_json({"tokens": TOKENIZER.encode(text, add_special_tokens=False)})
            return
        if body.get("logprobs") == -1:
            refusal = {"error": {"message": "greater than max allowed: 20", "type": "BadRequestError", "code": 400}}
            state.num_asked_for_all += 1
            state.idle.wait(PATIENCE_SECONDS)
            reported = {f"token_id:{token}": -1.0 - token * 1.0000001e-6 for token in range(state.vocab_size)}
            logprobs = {"tokens": ["token_id:0"], "token_logprobs": [-1.0], "top_logprobs": [reported]}
            answer = {"choices": [{"token_ids": [0], "logprobs": logprobs}]}
            self.send_json(answer if state.reports_all else refusal, 200 if state.reports_all else 400)
            return
        if 'text_of_start: ""' in body.get("structured_outputs", {}).get("grammar", ""):  # asked for at the start
            end = state.end_of_grammars
            self.send_json({"choices": [{"token_ids": [end]}]} if end is not None else {}, 400 if end is None else 200)
            return
        state.requests.append(body)
        state.headers.append({name.lower(): value for name, value in self.headers.items()})
        fault = state.faults.pop(0) if state.faults else ""
        if callable(fault):
            fault(self, body)
        elif fault == "html":
            self.send_content("text/html", b"<html>Welcome to nginx!</html>")
        elif fault == "refuse":
            self.send_json({"error": {"code": 400, "message": "prompt is silly", "type": "invalid"}}, 400)
        elif fault in ("down", "busy"):
            self.send_error(503)
        elif fault == "hang":
            state.release.wait(PATIENCE_SECONDS)
            self.close_connection = True
        elif self.path == "/v1/completions":
            self._vllm(body, fault)
        elif self.path == "/generate":
            self._sglang(body, fault)
        elif body["stream"]:
            self.is_spent = True
            self._stream(body, fault)
        else:
            self._whole(body, fault)

    def send_endlessly(self, content: bytes) -> None:
        """Repeat the same bytes until the client leaves."""
        self.close_connection = True
        try:
            while not self.server_state.release.is_set():
                self.wfile.write(content)
                self.server_state.num_sent += len(content)
        except OSError:
            self.server_state.was_left.set()

    def _sglang(self, body: dict[str, Any], fault: str) -> None:
        params, prompt, num_top = body["sampling_params"], body["input_ids"], body.get("top_logprobs_num", 0)
        others = [[-1.0 - other / 1000, other, None] for other in range(num_top)]
        if len(prompt) >= CONTEXT - 6:
            message = f"Input length ({len(prompt)} tokens) exceeds the maximum allowed length ({CONTEXT - 6} tokens)."
            self.send_json({"error": {"message": message}}, 400)
            return
        params["max_new_tokens"] = max(0, min(params["max_new_tokens"], CONTEXT - 2 - len(prompt)))
        if not body.get("stream"):
            meta: dict[str, Any] = {
                "input_token_logprobs": [[None if i == 0 else -0.5, token, None] for i, token in enumerate(prompt)]
            }
            meta["input_top_logprobs"] = [None if i == 0 else others for i in range(len(prompt))]
            self.send_json({"text": "", "output_ids": [], "meta_info": meta})
            return
        self.begin_stream()
        made: list[int] = []
        for count in range(1, params["max_new_tokens"] + 1):
            if fault == "half" and count == 3:
                self.close_connection = True
                return
            token = self._best([*prompt, *made], params.get("logit_bias", {}))
            if token in {*params["stop_token_ids"], END} and count <= params["min_new_tokens"]:
                token = ord("z")
            made.append(99_999 if fault == "other model" else token)
            ends = token in {*params["stop_token_ids"], END} and not params["ignore_eos"]
            is_last = count == params["max_new_tokens"]
            finish = {"type": "stop", "matched": token} if ends else {"type": "length"} if is_last else None
            cached = self.server_state.num_cached
            cached = min(2, len(prompt)) if cached is None else cached
            meta = {"finish_reason": finish, "completion_tokens": count, "cached_tokens": cached}
            if fault == "abort":
                meta["finish_reason"] = {"type": "abort", "message": "out of memory"}
            if body.get("return_logprob"):
                meta["output_token_logprobs"] = [[-0.5, token, None] for token in made]
                meta["output_top_logprobs"] = [others for _ in made]
            shown = made[-1:] if self.server_state.is_incremental else made
            self.send_event({"text": "?", "output_ids": shown, "meta_info": meta})
            if finish:
                break
        self.send_chunk(b"data: [DONE]\n\n")
        self.send_chunk(b"")

    def _vllm(self, body: dict[str, Any], fault: str) -> None:
        assert body["return_tokens_as_token_ids"] and body["return_token_ids"]
        if len(body["prompt"]) >= CONTEXT:
            message = f"The decoder prompt (length {len(body['prompt'])}) plus at least 1 token is too long"
            self.send_json({"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400)
            return
        if body.get("echo"):
            prompt = body["prompt"]
            logprobs = self._vllm_logprobs(prompt, body)
            logprobs["token_logprobs"][0] = logprobs["top_logprobs"][0] = None
            choice: dict[str, Any] = {"text": "", "logprobs": logprobs, "token_ids": [1], "finish_reason": "length"}
            if "prompt_logprobs" in body:
                ranked = [{str(token): {"logprob": -0.5, "rank": 7, "decoded_token": "?"}} for token in prompt]
                choice["prompt_logprobs"] = [None, *ranked[1:]]
            self.send_json({"choices": [choice]})
            return
        usage = {"prompt_tokens_details": {"cached_tokens": self.server_state.num_cached}}
        if body["stream"]:
            self.begin_stream()
        tokens = list(body["prompt"])
        for count in range(1, body["max_tokens"] + 1):
            if fault == "half" and count == 3:
                self.close_connection = True
                return
            token = self._vllm_token(tokens, body)
            if token in {*body["stop_token_ids"], END} and count <= body["min_tokens"]:
                token = ord("z")
            tokens.append(token)
            ends = token in body["stop_token_ids"]
            finish = "stop" if ends else "length" if count == body["max_tokens"] else None
            choice = {"index": 0, "text": "?", "token_ids": [token], "finish_reason": finish}
            if fault == "old version":
                del choice["token_ids"]
            if fault == "other model":
                choice["token_ids"] = [99_999]
            if body.get("logprobs") is not None:
                choice["logprobs"] = self._vllm_logprobs([token], body)
            if not body["stream"]:
                assert finish, "one token at a time is asked for in one piece"
                self.send_json({"choices": [choice], "usage": usage})
                return
            self.send_event({"choices": [choice]})
            if finish:
                break
        if body["stream_options"]["include_usage"]:
            self.send_event({"choices": [], "usage": usage})
        self.send_chunk(b"data: [DONE]\n\n")
        self.send_chunk(b"")

    def _vllm_token(self, tokens: list[int], body: dict[str, Any]) -> int:
        biases: dict[str, float] = body.get("logit_bias", {})
        assert all(-100 <= value <= 100 for value in biases.values())
        return self._best(tokens, biases, body.get("allowed_token_ids"))

    def _best(self, tokens: list[int], named: dict[str, float], allowed: list[int] | None = None) -> int:
        """The most likely allowed tokens: the script's token has a logit of 10, all others have 0."""
        biases = {int(token): value for token, value in named.items()}
        token = self.server_state.script(tokens)
        found = allowed or range(TOKENIZER.size)
        return max(found, key=lambda other: (biases.get(other, 0.0) + 10 * (other == token), -other))

    def _vllm_logprobs(self, tokens: Sequence[int], body: dict[str, Any]) -> dict[str, list[Any]]:
        if body["logprobs"] == TOKENIZER.size:
            [token] = tokens
            every = {f"token_id:{other}": -0.1 if other == token else -9.0 for other in range(TOKENIZER.size)}
            return {"tokens": [f"token_id:{token}"], "token_logprobs": [-0.1], "top_logprobs": [every]}
        others = {f"token_id:{other}": -1.0 - other / 1000 for other in range(body["logprobs"])}
        return {
            "tokens": [f"token_id:{token}" for token in tokens],
            "token_logprobs": [-0.5 for _ in tokens],
            "top_logprobs": [{f"token_id:{token}": -0.5, **others} for token in tokens],
        }

    def _timings(self) -> dict[str, int]:
        return {"cache_n": 1 if self.server_state.num_cached is None else self.server_state.num_cached}

    def _whole(self, body: dict[str, Any], fault: str) -> None:
        tokens = [99_999 if fault == "other model" else token for token in self.server_state.tokens_of(body)]
        whole = [token for token in tokens if token > 255 or not is_incomplete(TOKENIZER.token_bytes(token))]
        probabilities = [self._entry(token, body) for token in whole] if "n_probs" in body else []
        answer = {"tokens": tokens, "tokens_predicted": len(tokens), "timings": self._timings(), "stop": True}
        self.send_json(answer | ({"completion_probabilities": probabilities} if "n_probs" in body else {}))

    def _stream(self, body: dict[str, Any], fault: str) -> None:
        self.begin_stream()
        content = b""
        try:
            for count, token in enumerate(self.server_state.tokens_of(body), 1):
                if fault == "half" and count == 3:
                    self.close_connection = True
                    return
                content += b"" if token == END else TOKENIZER.token_bytes(token)
                if is_incomplete(content):
                    continue
                shown = 99_999 if fault == "other model" else token
                event: dict[str, Any] = {"tokens": [shown], "tokens_predicted": count, "timings": self._timings()}
                if "n_probs" in body:
                    event["completion_probabilities"] = [self._entry(token, body)]
                self.send_event(event | {"stop": False})
                if fault == "slow" and count == 2:
                    while not self.server_state.release.wait(0.02):
                        self.send_event({"tokens": [], "stop": False})
            self.send_event({"tokens": [], "tokens_predicted": count, "stop": True, "stop_type": "limit"})
            self.send_chunk(b"")
        except OSError:
            self.server_state.was_left.set()
            raise

    def _entry(self, token: int, body: dict[str, Any]) -> dict[str, Any]:
        others = [{"id": other, "logprob": -1.0 - other / 1000} for other in range(min(body["n_probs"], 300))]
        return {"id": token, "logprob": -0.5, "top_logprobs": others}

    def send_event(self, event: dict[str, Any]) -> None:
        self.send_chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def send_chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
        self.wfile.flush()

    def send_json(self, value: object, status: int = 200) -> None:
        self.send_content("application/json", json.dumps(value).encode(), status)

    def send_content(self, kind: str, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def stand_in(kind: str, tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[StandIn]:
    """Run a stand-in that is addressed as KIND+URL."""
    server = StandIn(kind, tls, port)
    try:
        yield server
    finally:
        server.close()
