"""Settings: the tables, and the layers of values with their sources.

setting.py describes one setting (name, unit, range, cost); tables.py has the settings of a topic and of the
process; keywords.py, written from them, holds their names for type checkers; toml_file.py reads and edits a
file with line numbers; settings.py merges arguments, environment, files and defaults, and changes the files.
Uses `errors`, `units`, `parse` and `files`. Start reading at tables.py.
"""

from lastword.config.setting import Setting as Setting
from lastword.config.settings import ALL_SETTINGS as ALL_SETTINGS
from lastword.config.settings import Settings as Settings
from lastword.config.settings import check_arguments as check_arguments
from lastword.config.settings import create_topic_settings as create_topic_settings
from lastword.config.settings import is_topic_file as is_topic_file
from lastword.config.settings import keyword_names as keyword_names
from lastword.config.settings import parse_topic_settings as parse_topic_settings
from lastword.config.settings import remove_topic_settings as remove_topic_settings
from lastword.config.settings import topic_file as topic_file
from lastword.config.settings import write_topic_settings as write_topic_settings
from lastword.config.tables import INSTANCE_SETTINGS as INSTANCE_SETTINGS
from lastword.config.tables import MEANING as MEANING
from lastword.config.tables import TOPIC_SETTINGS as TOPIC_SETTINGS
from lastword.config.tables import LogConfig as LogConfig
from lastword.config.tables import TopicConfig as TopicConfig
