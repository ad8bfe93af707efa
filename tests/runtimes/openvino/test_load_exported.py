"""Models written in float32 by the exporter of docs/how-to/models.md: the same numbers as PyTorch's, and the same token
ids.

Needs the environment of that page's recipe, some gigabytes: ONWARD_EXPORT names its folder.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from onward.engine.model import Row
from onward.models.same_tokenizer import differences, tokenizer_of
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.openvino.load import load_model

ENVIRONMENT = Path(os.environ.get("ONWARD_EXPORT", ".venv-export"))
TASK = ("--task", "text-generation-with-past")
MAKE = """
import json, sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

kind, folder = sys.argv[1:]
bytes_as_text = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer, tokenizer.decoder = bytes_as_text, decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=400, initial_alphabet=bytes_as_text.alphabet(), special_tokens=["<s>", "</s>"], show_progress=False
)
tokenizer.train_from_iterator([open(__file__).read()], trainer)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
common = dict(
    vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=1,
)
torch.manual_seed(0)
if kind == "gemma3":
    model = Gemma3ForCausalLM(Gemma3TextConfig(
        **common, intermediate_size=128, num_key_value_heads=2, head_dim=16, sliding_window=16))
else:
    model = OPTForCausalLM(OPTConfig(**common, ffn_dim=128, word_embed_proj_dim=64))
model.eval().save_pretrained(folder)
tokenizer.save_pretrained(folder)
tokens = [2 + 7 * index % 300 for index in range(40)]
with torch.no_grad():
    logits = model(torch.tensor([tokens])).logits[0].float()
print(json.dumps([tokens, logits.log_softmax(-1).tolist()]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (ENVIRONMENT / "bin/optimum-cli").exists(),
    reason="needs the exporter: set ONWARD_EXPORT to the environment of the recipe in docs/how-to/models.md",
)
@pytest.mark.parametrize("kind", ["gemma3", "opt"])
def test_an_exported_model_is_its_original(kind: str, tmp_path: Path) -> None:
    """Gemma 3, whose exporter depends on versions the most, and an architecture that Onward runs only as an export."""
    original, exported = tmp_path / "original", tmp_path / "exported"
    script = tmp_path / "make.py"
    script.write_text(MAKE, encoding="utf-8")
    binaries = ENVIRONMENT.resolve() / "bin"
    made = subprocess.run([binaries / "python", script, kind, original], stdout=subprocess.PIPE, check=True)
    command = [str(binaries / "optimum-cli"), "export", "openvino", "--model", str(original), *TASK]
    subprocess.run([*command, "--weight-format", "fp32", str(exported)], check=True)
    tokens, expected = json.loads(made.stdout.splitlines()[-1])
    model = load_model(exported, RuntimeOptions(precision="exact"))
    logits = model.evaluate([Row(0, tokens, 0, range(model.shape.blocks_for(len(tokens))), len(tokens))])
    found = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    model.close()
    np.testing.assert_allclose(found, expected, atol=5e-4)
    assert differences(tokenizer_of(str(exported), tmp_path), tokenizer_of(str(original), tmp_path)) == []
