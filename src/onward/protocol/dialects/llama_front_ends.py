"""What front ends such as SillyTavern send to llama-server beside its own fields, which ignores it.

Here other names of its fields act, and of what does not exist here the values are accepted that turn it off.
"""

from __future__ import annotations

from onward.protocol.dialects.rows import only, own, same, unused
from onward.protocol.parameter import Parameter

NAME = "llama-server"
_OFF: dict[str, tuple[object, ...]] = {
    "adaptive_target": (-1, -0.01),
    "banned_strings": ([],),
    "guidance_scale": (1,),
    "include_reasoning": (True,),
    "max_tokens_second": (0,),
    "negative_prompt": ("",),
    "rep_pen_slope": (1,),
    "skew": (0,),
    "smoothing_curve": (1,),
    "smoothing_factor": (0,),
    "tfs": (1,),
    "top_a": (0,),
}

FRONT_ENDS: tuple[Parameter, ...] = (
    own("max_new_tokens", "integer", NAME, "Another name of `n_predict`.", minimum=-1, alias_of="n_predict"),
    own("num_predict", "integer", NAME, "Another name of `n_predict`.", minimum=-1, alias_of="n_predict"),
    same("min_tokens", "min_tokens", NAME),
    same("ban_eos_token", "ban_eos_token", NAME),
    same("custom_token_bans", "banned_tokens", NAME),
    same("add_bos_token", "add_special_tokens", NAME),
    same("skip_special_tokens", "skip_special_tokens", NAME),
    same("stopping_strings", "stop", NAME, max_items=64, lenient_max_items=64),
    same("repetition_penalty", "repetition_penalty", NAME),
    same("rep_pen", "repetition_penalty", NAME),
    same("rep_pen_range", "repeat_last_n", NAME),
    same("repetition_penalty_range", "repeat_last_n", NAME),
    same("typical", "typical_p", NAME),
    same("nsigma", "top_n_sigma", NAME),
    same("mirostat_mode", "mirostat", NAME),
    *(only(name, NAME, *values, why="Only a value that turns it off is accepted.") for name, values in _OFF.items()),
    unused("adaptive_decay", "number", NAME, "it only concerns `adaptive_target`."),
    unused("truncation_length", "integer", NAME, "the context is the model's."),
    unused("num_ctx", "integer", NAME, "the context is the model's."),
    unused("api_type", "string", NAME, "what SillyTavern takes the server for."),
    unused("api_server", "string", NAME, "the address that SillyTavern has for the server."),
)
