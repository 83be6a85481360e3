"""Writes docs/settings.md from the tables of lastword.config. A test checks that the page is current."""

from __future__ import annotations

from pathlib import Path

from lastword.config import INSTANCE_SETTINGS, TOPIC_SETTINGS, LogConfig, Setting, TopicConfig

PAGE = Path(__file__).with_name("settings.md")

HEAD = """\
# Settings

Written by `docs/make_settings.py` from `lastword.config`; edit the settings there.

A setting has Kafka's dotted name. A Python keyword has underscores for the dots. An environment variable is
`LASTWORD_` and the name in capitals with underscores; a name that begins with `lastword.` gets no second
prefix. The most specific source decides:

    argument or option  >  LASTWORD_LOG_CLEANER_THREADS=2  >  the topic's file  >  the cluster's, of the topic
        >  [defaults]  >  the cluster's, of all topics  >  server.properties
        >  the top level of the file  >  built in

`lastword.toml` is in the log directory, with the settings of the directory and the defaults of topics. The
settings of a topic are in a file beside it, `lastword.topic-NAME.toml`: the same names, without a table. A
name of more than 231 characters is cut and gets a hash. If several directories are opened together, one of
them has these files. The cluster's settings are in `__cluster_metadata-0` of a Kafka log directory, or where
`--metadata` names them ([Kafka](kafka.md#settings)), and are parsed as Kafka parses them. Sizes have units
`KiB MiB GiB`, durations `ms s m h d`. `lastword config DIR [TOPIC]` shows every value and its source.

All mistakes in `lastword.toml` are reported together, before anything is opened. If the file of a topic is
damaged or cannot be read, nothing of the topic is removed, opening the topic reports the line, and the other
topics are served.

A table `[topics.NAME]` of `lastword.toml` may be written before the topic is created: the settings that the
creation gives are added to it, and all are saved in the topic's file. A table counts only while its topic has
no file; the next change of the settings moves it there. The deletion of a topic removes file and table.

A file named by `--config` or `config=` is read instead of `lastword.toml`, and never written:
`lastword config --set` is refused, and the settings of a new topic, its serializers too, must be in that file
before the topic is created.

## A sample with everything

Every line is commented out. It shows the default, or an example where nothing is set by default.

```toml
"""


EXAMPLES = {
    "log.dirs": '["/srv/d1", "/srv/d2"]',
    "log.cleaner.io.max.bytes.per.second": '"80MiB"',
    "cleanup.policy": '"compact"',
    "lastword.key.serializer": '"str"',
    "lastword.value.serializer": '"json"',
    "lastword.partitioner": '"murmur2"',
    "lastword.pulled.from": '"5L6g3nShT-eMCtK--X86sw"',
}
"""Of settings that have no default."""


def sample(known: dict[str, Setting], config: LogConfig | TopicConfig) -> list[str]:
    lines = []
    for setting in known.values():
        value = setting.show(getattr(config, setting.keyword))
        if setting.name == "drives":
            line = 'drives."/srv/d2" = "20MiB"'
        elif value in ("none", "not set", ""):
            line = f"{setting.name} = {EXAMPLES[setting.name]}"
        elif setting.unit in ("count", "ratio", "true or false") or value.lstrip("-").isdigit():
            line = f"{setting.name} = {value}"
        else:
            line = f'{setting.name} = "{value}"'
        unset = "; not set by default" if setting.name in EXAMPLES else ""
        lines.append(f"# {line:50} # {setting.allowed}{unset}".rstrip())
    return lines


def table(known: dict[str, Setting], config: LogConfig | TopicConfig, group: str) -> list[str]:
    lines = ["| name | default | what it does, what it costs |", "|---|---|---|"]
    for setting in known.values():
        if setting.group == group:
            value = setting.show(getattr(config, setting.keyword)) or "none"
            lines.append(f"| `{setting.name}` | {value} | {setting.text} |")
    return lines


def page() -> str:
    lines = [*sample(INSTANCE_SETTINGS, LogConfig()), "", "[defaults]          # or [topics.NAME]"]
    lines += [*sample(TOPIC_SETTINGS, TopicConfig()), "```"]
    for title, known, config in (
        ("For the whole directory", INSTANCE_SETTINGS, LogConfig()),
        ("For a topic", TOPIC_SETTINGS, TopicConfig()),
    ):
        for group, words in (("behaviour", "changes behaviour"), ("cost", "changes cost only")):
            lines += ["", f"## {title}: {words}", "", *table(known, config, group)]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
