"""Everything that an operator can configure: declared in one place, set by flags, environment, file or keywords."""

from onward.settings.declared import Settings, options
from onward.settings.folders import cache_folder, home_folder
from onward.settings.names import OPENAI_NAMES, adapted_models, model_named
from onward.settings.option import GROUPS, Group, Option
from onward.settings.sources import CONFIG_ENVIRONMENT, OTHER_VARIABLES, Resolved, resolve

__all__ = [
    "CONFIG_ENVIRONMENT",
    "GROUPS",
    "OPENAI_NAMES",
    "OTHER_VARIABLES",
    "Group",
    "Option",
    "Resolved",
    "Settings",
    "adapted_models",
    "cache_folder",
    "home_folder",
    "model_named",
    "options",
    "resolve",
]
