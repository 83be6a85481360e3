"""Settings: what exists, what was said, and by whom.

setting.py says what one setting is (name, unit, range, cost); topic.py and instance.py are the two tables;
toml.py reads lastword.toml with its lines; settings.py lays argument, environment, file and default over
each other; write.py changes the file. Stands on `errors`, `units` and `files`. Start reading at topic.py.
"""

from lastword.config.instance import INSTANCE_SETTINGS, LogConfig
from lastword.config.setting import Setting
from lastword.config.settings import (
    ALL_SETTINGS,
    FILE_NAME,
    Settings,
    keyword_names,
    parse_topic_settings,
)
from lastword.config.topic import TOPIC_SETTINGS, TopicConfig
from lastword.config.write import remove_topic_settings, write_topic_settings

__all__ = [
    "ALL_SETTINGS",
    "FILE_NAME",
    "INSTANCE_SETTINGS",
    "TOPIC_SETTINGS",
    "LogConfig",
    "Setting",
    "Settings",
    "TopicConfig",
    "keyword_names",
    "parse_topic_settings",
    "remove_topic_settings",
    "write_topic_settings",
]
