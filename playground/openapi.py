"""Print the part of the OpenAPI document that the playground's types come from: what the server answers.

The fields of a request are not part of it: the page gets them from the server that it talks to.
"""

from __future__ import annotations

import json

from onward.api.openapi import openapi
from onward.server.app import ROUTES

READ = (
    "CompletionChunk", "Choice", "Logprobs", "PromptLogprob", "Usage", "PromptTokensDetails",
    "CompletionTokensDetails", "Error", "Model", "ModelList", "TokenizeRequest", "TokenizeResponse",
    "DetokenizeRequest", "DetokenizeResponse", "TokenizerInfo", "ApplyTemplateResponse",
)  # fmt: skip


def main() -> None:
    document = openapi("0", ROUTES, dialects=())
    schemas = document["components"]["schemas"]
    part = {"openapi": document["openapi"], "info": document["info"], "paths": {}}
    print(json.dumps(part | {"components": {"schemas": {name: schemas[name] for name in READ}}}))


if __name__ == "__main__":
    main()
