"""Everything that an operator can configure: declared in one place, set by flags, environment, file or keywords."""

from onward.settings.declared import PREFIX_CACHE_SAVE_SECONDS, Settings, options
from onward.settings.names import (
    MODEL_SETTINGS,
    OPENAI_NAMES,
    UPSTREAM_KINDS,
    UpstreamName,
    adapted_models,
    model_named,
    model_words,
    served_name,
    served_names,
    upstream_of,
    upstreams_of,
)
from onward.settings.option import GROUPS, Option, SettingGroup
from onward.settings.sources import CONFIG_ENVIRONMENT, OTHER_VARIABLES, Resolved, resolve

__all__ = [
    "CONFIG_ENVIRONMENT",
    "GROUPS",
    "MODEL_SETTINGS",
    "OPENAI_NAMES",
    "OTHER_VARIABLES",
    "PREFIX_CACHE_SAVE_SECONDS",
    "UPSTREAM_KINDS",
    "Option",
    "Resolved",
    "SettingGroup",
    "Settings",
    "UpstreamName",
    "adapted_models",
    "model_named",
    "model_words",
    "options",
    "resolve",
    "served_name",
    "served_names",
    "upstream_of",
    "upstreams_of",
]
