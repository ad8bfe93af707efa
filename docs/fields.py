"""The page that says what becomes of the fields that other servers take: from their sources, and the parameter table.

Every field is either in the table or has a reason in REASONS: `fields_page` raises KeyError for one that has neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from onward.api.openai.parameters import BY_NAME
from onward.api.parameter import Parameter
from onward.sampling.filters import OPTIONAL

_OPENAI = (
    "model prompt echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream "
    "stream_options suffix temperature top_p user "
)
SERVERS = {
    "vLLM (`entrypoints/openai/completion/protocol.py`)": _OPENAI
    + "use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids "
    "include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens "
    "truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs logprob_token_ids bad_words "
    "prompt_embeds add_special_tokens response_format structured_outputs priority request_id session_id "
    "return_tokens_as_token_ids return_token_ids routed_experts_prompt_start return_token_offsets return_mm_kwargs "
    "cache_salt kv_transfer_params ec_transfer_params vllm_xargs repetition_detection thinking_token_budget "
    "stream_interval",
    "SGLang (`srt/entrypoints/openai/protocol.py`)": _OPENAI
    + "best_of return_hidden_states return_routed_experts routed_experts_start_len return_cached_tokens_details top_k "
    "min_p min_tokens json_schema regex ebnf repetition_penalty stop_token_ids stop_regex no_stop_trim ignore_eos "
    "skip_special_tokens lora_path session_params response_format custom_params custom_logit_processor "
    "bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank data_parallel_rank rid "
    "extra_key cache_salt priority custom_labels",
    "TabbyAPI (`common/sampling.py`)": "max_tokens max_length min_tokens min_length generate_window stop stop_sequence "
    "banned_strings banned_tokens custom_token_bans allowed_tokens allowed_token_ids token_healing temperature "
    "temperature_last smoothing_factor top_k top_p top_a min_p tfs typical typical_p skew xtc_probability "
    "xtc_threshold frequency_penalty presence_penalty repetition_penalty rep_pen penalty_range repetition_range "
    "repetition_penalty_range rep_pen_range repetition_decay dry_multiplier dry_base dry_allowed_length dry_range "
    "dry_penalty_last_n dry_sequence_breakers mirostat_mode mirostat mirostat_tau mirostat_eta add_bos_token "
    "ban_eos_token ignore_eos skip_special_tokens logit_bias negative_prompt json_schema regex_pattern "
    "grammar_string speculative_ngram cfg_scale max_temp min_temp temp_exponent dynatemp_high dynatemp_low "
    "dynatemp_exponent logprobs top_logprobs adaptive_target adaptive_decay loop_detect_window model prompt stream "
    "stream_options response_format n best_of echo suffix user max_completion_tokens",
    "Aphrodite (`endpoints/openai/protocol.py`)": _OPENAI
    + "best_of prompt_embeds allowed_token_ids include_stop_str_in_output add_special_tokens use_beam_search top_k "
    "min_p top_a tfs eta_cutoff epsilon_cutoff typical_p smoothing_factor smoothing_curve repetition_penalty "
    "no_repeat_ngram_size length_penalty early_stopping ignore_eos min_tokens stop_token_ids skip_special_tokens "
    "spaces_between_special_tokens truncate_prompt_tokens temperature_last prompt_logprobs xtc_threshold "
    "xtc_probability dry_multiplier dry_base dry_allowed_length dry_sequence_breakers dry_range dry_max_ngram "
    "dry_max_occurrences dry_early_exit_match_len dynatemp_min dynatemp_max dynatemp_exponent nsigma skew "
    "custom_token_bans token_ban_ranges banned_phrases banned_strings sampler_priority sampler_order "
    "mirostat_mode mirostat_tau mirostat_eta enable_deepconf deepconf_window_size deepconf_threshold "
    "enable_reasoning_recovery max_recovery_attempts recovery_phrases final_admission response_format guided_json "
    "guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern priority "
    "request_id logits_processors return_tokens_as_token_ids return_token_ids cache_salt kv_transfer_params "
    "aphrodite_xargs",
    "llama-server (`tools/server/server-schema.cpp`, `oaicompat_completion_params_parse`)": "model prompt stop stream "
    "stream_options n_predict max_tokens n n_cmpl seed temperature dynatemp_range dynatemp_exponent top_k top_p min_p "
    "top_n_sigma typical_p xtc_probability xtc_threshold repeat_last_n repeat_penalty presence_penalty "
    "frequency_penalty penalize_nl dry_multiplier dry_base dry_allowed_length dry_penalty_last_n "
    "dry_sequence_breakers mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay samplers min_keep "
    "logit_bias ignore_eos grammar json_schema logprobs n_probs post_sampling_probs return_tokens response_fields "
    "timings_per_token return_progress verbose cache_prompt n_cache_reuse n_keep n_discard n_indent t_max_prompt_ms "
    "t_max_predict_ms id_slot lora backend_sampling sse_ping_interval echo best_of suffix",
    "KoboldCpp (`generate`, after its `transform_genparams`)": "prompt memory images audio negative_prompt "
    "guidance_scale max_context_length max_length temperature top_k top_a top_p min_p typical tfs nsigma rep_pen "
    "rep_pen_range rep_pen_slope presence_penalty mirostat mirostat_tau mirostat_eta dry_multiplier dry_base "
    "dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_threshold xtc_probability sampler_order "
    "sampler_seed stop_sequence ban_eos_token bypass_eos grammar grammar_retain_state genkey trim_stop dynatemp_range "
    "dynatemp_exponent smoothing_factor smoothing_curve adaptive_target adaptive_decay logit_bias render_special "
    "banned_strings banned_tokens custom_token_bans reasoning_effort",
    "text-generation-inference (`router/src/lib.rs`, `CompletionRequest`)": "model prompt max_tokens temperature top_p "
    "stream seed suffix repetition_penalty frequency_penalty stop",
}

_ABSENT = "refused: this server does not have it"
_ONE_PROCESS = "refused: it concerns engines on several machines"
_OF_SEVERAL_MACHINES = (
    "kv_transfer_params ec_transfer_params bootstrap_host bootstrap_port bootstrap_room routed_dp_rank "
    "disagg_prefill_dp_rank data_parallel_rank"
)
_OF_OTHERS = (
    "prompt_embeds session_id routed_experts_prompt_start return_mm_kwargs vllm_xargs repetition_detection "
    "thinking_token_budget stream_interval return_routed_experts routed_experts_start_len session_params "
    "custom_params custom_labels stop_regex banned_phrases enable_deepconf deepconf_window_size deepconf_threshold "
    "enable_reasoning_recovery max_recovery_attempts recovery_phrases final_admission aphrodite_xargs "
    "loop_detect_window generate_window token_ban_ranges dry_max_ngram dry_max_occurrences dry_early_exit_match_len "
    "max_temp min_temp logprob_token_ids n_keep n_discard images audio bypass_eos"
)
_OF_ONE_ENGINE = "refused: it concerns the inside of that engine"
REASONS: dict[str, str] = {
    **dict.fromkeys(_OF_SEVERAL_MACHINES.split(), _ONE_PROCESS),
    **dict.fromkeys(_OF_OTHERS.split(), _ABSENT),
    "truncation_side": "refused: `truncate_prompt_tokens` keeps the last tokens",
    "request_id": "refused: answers have an `X-Request-ID` of their own",
    "rid": "refused: answers have an `X-Request-ID` of their own",
    "return_token_offsets": "refused: `text_offset` of `logprobs` has them",
    "extra_key": "refused: send `cache_salt`",
    "return_cached_tokens_details": "refused: `usage` always has `cached_tokens`",
    "lora_path": "refused: an adapter is a `model` of its own",
    "custom_logit_processor": "refused: requests cannot bring code",
    "logits_processors": "refused: requests cannot bring code",
    **dict.fromkeys(
        ["dynatemp_min", "dynatemp_max", "dynatemp_low", "dynatemp_high", "min_temp", "max_temp"],
        "refused: send `dynatemp_range`",
    ),
    "top_logprobs": "refused: send `logprobs`",
    "n_cmpl": "refused: send `n`",
    "post_sampling_probs": "refused: log-probabilities are those of the raw distribution",
    "return_tokens": "refused: send `return_token_ids`",
    "response_fields": "refused: answers have the fields of this API",
    "timings_per_token": "refused: `/completion` of the llama-server dialect has timings",
    "return_progress": "refused: a stream begins with its first token",
    "verbose": "refused: answers have the fields of this API",
    "n_indent": "refused: `/infill` of the llama-server dialect has it",
    "t_max_prompt_ms": "refused: `/infill` of the llama-server dialect has it",
    "t_max_predict_ms": "refused: `/infill` of the llama-server dialect has it",
    **dict.fromkeys(["n_cache_reuse", "id_slot", "backend_sampling", "sse_ping_interval"], _OF_ONE_ENGINE),
    "lora": "refused: an adapter is a `model` of its own",
    "memory": "refused: put it before the prompt",
    "sampler_order": "refused: send `samplers`",
    "grammar_retain_state": "refused: a grammar begins anew with each completion",
    "genkey": "refused: a request ends with its connection",
    "render_special": "refused: send `skip_special_tokens`",
    "reasoning_effort": "refused: completions have no reasoning of their own",
}


def fields_page(note: str) -> Iterator[str]:
    """Yield the page's paragraphs. Raises KeyError for a field without an answer."""
    yield "# Fields of other servers"
    yield note
    yield (
        "What `/v1/completions` does with the fields that other servers take there, read from their sources. Fields "
        "that are refused get an error by name, in all profiles but lenient. What front ends such as SillyTavern send "
        "whether it is used or not is accepted with the value that changes nothing. What [dialects](dialects.md) such "
        "as llama-server's, Ollama's and text-generation-inference's own paths take is listed there."
    )
    ranked = ", ".join(f"`{name}`" for name in (*OPTIONAL, "mirostat"))
    yield (
        f"{ranked} and another order of `samplers` need the logits sorted: with 150,000 tokens that takes about a "
        "millisecond for each token that is sampled (`python -m benchmarks.sampling`), which all clients of the model "
        "wait for; two choices or more are sampled on two threads. Where `top_k` or `min_p` comes before them, only "
        "what those keep is sorted, which takes a fifth of that. `temperature`, `top_p`, `top_k` and `min_p` in their "
        "usual order take a twentieth."
    )
    yield (
        "`logprobs: -1` (the whole vocabulary) is refused: vLLM's completions refuse it too, and one token of a model "
        "with 150,000 would be an answer of several megabytes. `prompt_logprobs: -1` is refused likewise."
    )
    yield (
        "llama-server's fields are those of the version in llama-cpp-python 0.3.36. text-generation-inference ignores "
        "unknown fields; its own path is one of the dialects."
    )
    for server, names in SERVERS.items():
        yield f"## {server}"
        yield "| field | here |\n|---|---|\n" + "\n".join(f"| `{name}` | {answer_to(name)} |" for name in names.split())


def answer_to(name: str) -> str:
    """Return what becomes of a field, in words."""
    row: Parameter | None = BY_NAME.get(name)
    if row is None:
        return REASONS[name]
    if row.kind == "fixed":
        return "only " + " or ".join(f"`{json.dumps(value)}`" for value in row.only)
    if not row.has_effect:
        return "accepted: it has no meaning here"
    return f"acts, as `{row.alias_of}`" if row.alias_of and not row.converts else "acts"
