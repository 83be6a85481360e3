"""Records of the coordinators' topics that are cut, of a version of tomorrow, or of another key.

Each `Case` is for a partition of its own and names one group or transactional id that the partition has. A
loader either finds its state, or refuses to answer: "no committed offset" and a new producer id are wrong.

    cases = mutations(GROUPS, seed=1, most=20)
    write(directory, GROUPS, [case.records for case in cases])     # nobody uses the directory
    answers = asked(client, cases)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.protocol import codes, encode_stored, java_hash, messages
from tests.server.client import Client, batch, offset_fetch

GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
FOUND, REFUSED, UNKNOWN = "found", "refused", "unknown"
"""Classes of answers: the stored state, an error after which clients ask again, and "there is none"."""
OFFSET, PRODUCER_ID = 41, 4100
Stored = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class Case:
    """A partition of a coordinator's topic.

    Attributes:
        topic: The topic.
        name: What was changed.
        subject: The group or transactional id that is asked for.
        records: The records of the partition.
        right: The class of the right answer.
    """

    topic: str
    name: str
    subject: str
    records: tuple[Stored, ...]
    right: str


def committed(group: str) -> tuple[bytes, bytes]:
    """Return the record of a committed offset."""
    value = messages.OffsetCommitValue(offset=OFFSET, leader_epoch=-1, metadata="m", commit_timestamp=1 << 41)
    key = messages.OffsetCommitKey(group=group, topic="t", partition=0)
    return encode_stored(key), encode_stored(value, 4)


def transactional(transactional_id: str) -> tuple[bytes, bytes]:
    """Return the record of a transactional id without a transaction."""
    value = messages.TransactionLogValue(
        producer_id=PRODUCER_ID,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=1 << 41,
        transaction_start_timestamp_ms=-1,
    )
    key = messages.TransactionLogKey(transactional_id=transactional_id)
    return encode_stored(key), encode_stored(value, 1)


def _members(group: str) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the records of the members of groups that share the partition: name, key, value."""
    classic = messages.GroupMetadataValue(protocol_type="consumer", protocol=None, leader=None, members=[])
    yield "classic group", encode_stored(messages.GroupMetadataKey(group=group)), encode_stored(classic, 3)
    for name, key, value in (
        ("group", {}, {"epoch": 1}),
        ("member", {"member_id": "m"}, {"client_id": "c", "client_host": "h", "rebalance_timeout_ms": 1}),
        ("current assignment", {"member_id": "m"}, {"member_epoch": 1, "previous_member_epoch": 0}),
    ):
        kind = "ConsumerGroup" + {"group": "", "member": "Member"}.get(name, "CurrentMemberAssignment")
        kind += "" if name == "current assignment" else "Metadata"
        stored = getattr(messages, f"{kind}Value")(**value)
        yield (
            name,
            encode_stored(getattr(messages, f"{kind}Key")(group_id=group, **key)),
            encode_stored(stored),
        )


def _mutations(topic: str, subject: str) -> Iterator[tuple[str, str, list[Stored], str]]:
    """Yield (kind, name, records, class of the right answer) of every mutation."""
    key, value = sound = (committed if topic == GROUPS else transactional)(subject)
    yield "sound", "nothing", [sound], FOUND
    for n in range(len(value)):
        yield "value", f"value cut at {n}", [(key, value[:n])], REFUSED
    for version in (5, 77, 0x7FFF, -1):
        mutated = version.to_bytes(2, "big", signed=True) + value[2:]
        yield "version", f"value of version {version}", [(key, mutated)], REFUSED
        yield "superseded", f"superseded value of version {version}", [(key, mutated), sound], FOUND
    yield "longer", "bytes behind the value", [(key, value + b"\0\1")], FOUND
    yield "longer", "bytes behind the key", [(key + b"\0\1", value), sound], FOUND
    for n in range(len(key)):
        yield "key", f"key cut at {n}", [(key[:n], value), sound], REFUSED
        yield "tombstone", f"tombstone of a key cut at {n}", [(key[:n], None), sound], REFUSED
    for number in (99, 0x7FFF, -1):
        other = number.to_bytes(2, "big", signed=True)
        yield "type", f"key of type {number}", [(other + key[2:], value), (other, b""), sound], FOUND
    for name, member_key, member_value in _members("other") if topic == GROUPS else ():
        for n in range(len(member_value)):
            yield f"of a {name}", f"{name} cut at {n}", [(member_key, member_value[:n]), sound], REFUSED


def _subjects() -> Iterator[str]:
    """Yield names of one length; their last characters give every remainder of a division by 31."""
    return (f"subject-{n:05}{chr(65 + n % 31)}" for n in range(100_000))


def mutations(topic: str, seed: int, most: int) -> list[Case]:
    """Return cases of a topic: the case at n is for partition n of len(cases) partitions.

    Args:
        topic: The topic.
        seed: Chooses among the mutations of a kind.
        most: Most cases of each kind of mutation.
    """
    kinds: dict[str, list[int]] = {}
    for number, (kind, *_) in enumerate(_mutations(topic, next(_subjects()))):
        kinds.setdefault(kind, []).append(number)
    chooser = random.Random(seed)
    chosen = [n for all_of in kinds.values() for n in chooser.sample(all_of, min(most, len(all_of)))]
    cases = []
    for partition, number in enumerate(chosen):
        subject = next(s for s in _subjects() if java_hash(s) % len(chosen) == partition)
        _, name, records, right = list(_mutations(topic, subject))[number]
        cases.append(Case(topic, name, subject, tuple(records), right))
    return cases


def write(directory: Path, topic: str, partitions: Sequence[Sequence[Stored]]) -> None:
    """Replace the first segment of each partition; the directory has them, and nobody uses it."""
    for partition, records in enumerate(partitions):
        data = b"".join(
            batch(record, base_offset=offset, leader_epoch=0) for offset, record in enumerate(records)
        )
        folder = directory / f"{topic}-{partition}"
        for path in folder.glob("0*"):
            path.unlink()
        (folder / f"{0:020}.log").write_bytes(data)
    (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)


def asked(client: Client, cases: list[Case]) -> dict[str, str]:
    """Return the class of the answer to each case, by its name."""
    return {
        case.name: (_offset if case.topic == GROUPS else _producer)(client, case.subject) for case in cases
    }


def _offset(client: Client, group: str) -> str:
    answer = _loaded(client, offset_fetch(group, topic="t"), 9, lambda answer: answer.groups[0])
    if answer.error_code:
        return _refusal(answer.error_code)
    offset = answer.topics[0].partitions[0].committed_offset
    return {OFFSET: FOUND, -1: UNKNOWN}.get(offset, str(offset))


def _producer(client: Client, transactional_id: str) -> str:
    body = messages.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000)
    answer = _loaded(client, body, 4, lambda answer: answer)
    if answer.error_code:
        return _refusal(answer.error_code)
    return FOUND if answer.producer_id == PRODUCER_ID else UNKNOWN


def _loaded(client: Client, body: Any, version: int, part: Callable[[Any], Any]) -> Any:
    """Ask again while a broker loads its topics, or waits for its first producer ids."""
    for _ in range(100):
        answer = part(client.ask(body, version))
        if answer.error_code != codes.COORDINATOR_LOAD_IN_PROGRESS:
            break
        time.sleep(0.1)
    return answer


def _refusal(code: int) -> str:
    again = (codes.NOT_COORDINATOR, codes.COORDINATOR_LOAD_IN_PROGRESS)
    return REFUSED if code in again else codes.ERROR_NAMES[code]
