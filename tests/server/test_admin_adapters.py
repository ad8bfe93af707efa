"""vLLM's routes for adapters: who may use them, what is audited, and vLLM's answers and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onward.errors import ModelNameError, SetupError
from onward.server.admin import NOT_ADMIN, NOT_LIVE
from onward.server.app import App
from tests.server.fakes import Call, FakeBackend, in_loop, settings
from tests.server.test_admin import FakeModels, Served, serving

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (LOAD, {"lora_name": "poet", "lora_path": "poet"}),
    (UNLOAD, {"lora_name": "poet"}),
]


def test_only_an_admin_key_loads_and_unloads(tmp_path: Path) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        for url, body in REQUESTS:
            for key in ("sk-alice", "sk-file"):
                call = await served.call("POST", url, body, key=key)
                assert (call.status, call.error["message"], call.error["code"]) == (403, NOT_ADMIN, 403)
            call = await served.call("POST", url, body, key="sk-wrong")
            assert (call.status, call.error["code"]) == (401, 401)
        assert models.asked == [] and served.audit == []

    serving(tmp_path, test)


@in_loop
async def test_without_an_admin_key_nobody_does_even_on_a_loopback_address() -> None:
    app = App(FakeBackend(), settings(), live=FakeModels())
    for url, body in REQUESTS:
        call = Call(app, "POST", url, json.dumps(body).encode())
        call.scope["client"] = ("127.0.0.1", 1)
        await call.done()
        assert (call.status, call.error["message"]) == (403, NOT_ADMIN)


def test_answers_are_those_of_vllm_and_changes_are_audited(tmp_path: Path) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        added = await served.call("POST", *REQUESTS[0])
        assert (added.status, added.body) == (200, b"Success: LoRA adapter 'poet' added successfully.")
        assert added.headers["content-type"].startswith("text/plain")
        body = {"lora_name": "a/b", "lora_path": "/x", "load_inplace": True, "base_model_name": "tiny"}
        assert (await served.call("POST", LOAD, body | {"is_3d_lora_weight": False})).status == 200
        removed = await served.call("POST", UNLOAD, {"lora_name": "poet", "lora_int_id": None})
        assert removed.body == b"Success: LoRA adapter 'poet' removed successfully."
        assert models.asked == [("poet", "poet", None, False), ("a/b", "/x", "tiny", True), ("poet",)]
        assert served.audit == [("the key chief", "models", "chief", "added tiny (/models/tiny)")] * 3

    serving(tmp_path, test)


WRONG: list[tuple[str, object, str, str]] = [
    (LOAD, {}, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided."),
    (LOAD, {"lora_name": "a"}, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided."),
    (LOAD, {"lora_name": "", "lora_path": "b"}, "InvalidUserInput", "Both 'lora_name' and 'lora_path'"),
    (LOAD, {"lora_name": 3, "lora_path": "b"}, "invalid_request_error", "Invalid type for 'lora_name'"),
    (LOAD, {"lora_name": "a\n", "lora_path": "b"}, "invalid_request_error", "it must consist of printable characters"),
    (LOAD, {"lora_name": "a", "lora_path": "b" * 257}, "invalid_request_error", "'lora_path': string too long"),
    (LOAD, {"lora_name": "a", "lora_path": "b", "load_inplace": 1}, "invalid_request_error", "'load_inplace'"),
    (LOAD, {"lora_name": "a", "lora_path": "b", "is_3d_lora_weight": True}, "invalid_request_error", "experts"),
    (LOAD, {"lora_name": "a", "lora_path": "b", "url": "c"}, "invalid_request_error", "Unrecognized request argument"),
    (LOAD, [], "invalid_request_error", "Invalid type for the request body"),
    (UNLOAD, {}, "InvalidUserInput", "'lora_name' must be provided."),
    (UNLOAD, {"lora_name": "a", "lora_int_id": 3}, "invalid_request_error", "adapters have no numbers"),
    (UNLOAD, {"name": "a"}, "invalid_request_error", "Unrecognized request argument"),
    (UNLOAD, b"{", "invalid_request_error", "could not parse the JSON body"),
]


def test_bad_requests_are_named(tmp_path: Path) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        for url, body, kind, words in WRONG:
            call = await served.call("POST", url, body)
            assert (call.status, call.error["type"], call.error["code"]) == (400, kind, 400), body
            assert words in call.error["message"], call.error
        assert (await served.call("POST", LOAD, b"{" + b" " * 10_000)).status == 413
        assert (await served.call("GET", LOAD)).status == 405
        assert models.asked == []

    serving(tmp_path, test)


def test_what_cannot_be_done_has_vllm_s_shape_and_is_not_audited(tmp_path: Path) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        for problem, status, kind in (
            (SetupError("It has been loaded already."), 400, "InvalidUserInput"),
            (ModelNameError("There is none."), 404, "NotFoundError"),
        ):
            models.problem = problem
            for url, body in REQUESTS:
                call = await served.call("POST", url, body)
                expected = {"message": str(problem), "type": kind, "param": None, "code": status}
                assert (call.status, call.error) == (status, expected)
        models.is_busy = True
        for url, body in REQUESTS:
            assert (await served.call("POST", url, body)).status == 409
        models.is_busy = False
        served.backend.drain()
        assert (await served.call("POST", *REQUESTS[1])).status == 503
        assert served.audit == []

    serving(tmp_path, test)


def test_models_of_a_cluster_get_none(tmp_path: Path) -> None:
    async def test(served: Served, models: FakeModels) -> None:
        for url, body in REQUESTS:
            call = await served.call("POST", url, body)
            assert (call.status, call.error["message"]) == (400, NOT_LIVE)

    serving(tmp_path, test, is_live=False)
