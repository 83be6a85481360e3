"""Settings: the tables, and the layers of values with their sources.

setting.py describes one setting (name, unit, range, cost); tables.py has the settings of a topic and of the
process; keywords.py, written from them, holds their names for type checkers; settings.py reads lastword.toml
with line numbers, merges arguments, environment, file and defaults, and changes the file. Uses `errors`,
`units`, `parse` and `files`. Start reading at tables.py.
"""

from lastword.config.setting import Setting
from lastword.config.settings import (
    ALL_SETTINGS,
    FILE_NAME,
    Settings,
    check_arguments,
    keyword_names,
    parse_topic_settings,
    remove_topic_settings,
    restore_topic_settings,
    write_settings_of_topics,
    write_topic_settings,
)
from lastword.config.tables import INSTANCE_SETTINGS, TOPIC_SETTINGS, LogConfig, TopicConfig

__all__ = [
    "ALL_SETTINGS",
    "FILE_NAME",
    "INSTANCE_SETTINGS",
    "TOPIC_SETTINGS",
    "LogConfig",
    "Setting",
    "Settings",
    "TopicConfig",
    "check_arguments",
    "keyword_names",
    "parse_topic_settings",
    "remove_topic_settings",
    "restore_topic_settings",
    "write_settings_of_topics",
    "write_topic_settings",
]
