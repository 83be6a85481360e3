"""Settings: the tables, and the layers of values with their sources.

setting.py describes one setting (name, unit, range, cost); tables.py has the settings of a topic and of the
process; keywords.py, written from them, holds their names for type checkers; toml_file.py reads and edits a
file with line numbers; settings.py merges arguments, environment, files and defaults, and changes the files.
Uses `errors`, `units`, `parse` and `files`. Start reading at tables.py.
"""

from lastword.config.setting import Setting
from lastword.config.settings import (
    ALL_SETTINGS,
    FILE_NAME,
    Settings,
    check_arguments,
    create_topic_settings,
    is_topic_file,
    keyword_names,
    parse_topic_settings,
    remove_topic_settings,
    topic_file,
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
    "create_topic_settings",
    "is_topic_file",
    "keyword_names",
    "parse_topic_settings",
    "remove_topic_settings",
    "topic_file",
    "write_topic_settings",
]
