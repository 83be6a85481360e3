"""`lastword get`: show the newest records of keys."""

from __future__ import annotations

from typing import Annotated

import typer

from lastword.api.serializers import bytes_json
from lastword.cli.command import Session, command
from lastword.cli.records import show_record
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.cli.text import key_candidates
from lastword.errors import UsageError

NO_VALUE = 8  # exit code if a key has no value

GET_EXAMPLES = """
lastword get data users ada
lastword get data users ada bob --json
lastword get data/users-0 ada
"""


def register(app: typer.Typer) -> None:
    """Add the command `get`."""
    command(app, "get", usage="DIR TOPIC KEY...", examples=GET_EXAMPLES)(get)


def get(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", help="keys, typed as `read` shows them")
    ] = None,
    partition: Partition = None,
    more: MoreDirs = None,
) -> int:
    """Show the newest record of each of some keys.

    Exit code 8 if a key has no value: it was never written, or was deleted.
    """
    words = [topic, *(keys or ())]
    target, given = Target.with_words("get", directory, words, ["KEY"] * max(1, len(words)), partition, more)
    texts = [text for text in given if text is not None]
    known = target.topic_for("get", "KEY")
    if not texts:
        raise UsageError("get needs a KEY", remedy=target.command("get", *target.words, "KEY"))
    with out.open(target) as logs:
        source = logs.topic(known, key_serializer="bytes", value_serializer="bytes")
        names = source.schema.saved
        meanings = {text: key_candidates(text, names[0]) for text in texts}
        every = {data for candidates in meanings.values() for data in candidates}
        records = source.get_records(every, partition=target.partition)
    missing = 0
    for text, candidates in meanings.items():
        record = next((records[data] for data in candidates if data in records), None)
        if record is not None:
            show_record(out, record, names)
        else:
            missing += 1
            out.row("missing", {"topic": known, "key": bytes_json(candidates[0])})
            out.say(f"{text}: no value")
    out.summary(topic=known, records=len(meanings) - missing, missing=missing)
    return NO_VALUE if missing else 0
