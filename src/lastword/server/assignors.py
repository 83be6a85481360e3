"""Assignors of the groups of KIP-848: which member reads which partitions."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

Partition = tuple[bytes, int]
"""The id of a topic, and a partition."""
Partitions = frozenset[Partition]


def uniform(
    members: Mapping[str, frozenset[bytes]],
    topics: Mapping[bytes, Sequence[int]],
    before: Mapping[str, Partitions],
) -> dict[str, Partitions]:
    """Return the partitions of each member: as even as the subscriptions allow, with few moves.

    Args:
        members: The topics that each member subscribes to.
        topics: The partitions of these topics.
        before: The partitions that each member had.
    """
    kept = {
        partition: member
        for member in members
        for partition in before.get(member, ())
        if partition[0] in members[member] and partition[1] in topics.get(partition[0], ())
    }
    result: dict[str, set[Partition]] = {member: set() for member in members}
    for partition, member in kept.items():
        result[member].add(partition)
    wanted = sorted({topic_id for subscribed in members.values() for topic_id in subscribed & topics.keys()})
    free = [(topic_id, n) for topic_id in wanted for n in topics[topic_id] if (topic_id, n) not in kept]
    if len(set(members.values())) == 1:
        _level(result, free)
    else:
        readers: dict[bytes, dict[str, list[Partition]]] = {topic_id: {} for topic_id in wanted}
        for member in sorted(members):
            for topic_id in members[member] & topics.keys():
                readers[topic_id][member] = []
        for member, partitions in result.items():
            for partition in sorted(partitions):
                readers[partition[0]][member].append(partition)
        _level_by_topic(readers, free, {member: len(partitions) for member, partitions in result.items()})
        result = {member: set() for member in members}
        for has in readers.values():
            for member, moved in has.items():
                result[member].update(moved)
    return {member: frozenset(partitions) for member, partitions in result.items()}


def _level(result: dict[str, set[Partition]], free: list[Partition]) -> None:
    """Divide partitions between members with the same subscription: the counts differ by one at most."""
    count, rest = divmod(sum(map(len, result.values())) + len(free), len(result))
    order = sorted(result, key=lambda member: (-len(result[member]), member))
    short: deque[tuple[str, int]] = deque()
    for place, member in enumerate(order):
        quota = count + (place < rest)
        partitions = sorted(result[member])
        free += partitions[quota:]
        result[member] = set(partitions[:quota])
        if len(partitions) < quota:
            short.append((member, quota - len(partitions)))
    for partition in free:
        member, missing = short.popleft()
        result[member].add(partition)
        if missing > 1:
            short.append((member, missing - 1))


def _level_by_topic(
    readers: dict[bytes, dict[str, list[Partition]]], free: Iterable[Partition], loads: dict[str, int]
) -> None:
    """Divide partitions between members with different subscriptions.

    In the end no member could give a partition to a reader of its topic that has at least two less.

    Args:
        readers: The partitions that each reader of a topic has.
        free: The partitions without an owner.
        loads: The number of partitions of each member.
    """
    heaps: dict[bytes, list[tuple[int, str]]] = {}
    for partition in free:
        has = readers[partition[0]]
        least = heaps.setdefault(partition[0], [(-1, member) for member in has])
        taker = _least(least, loads)
        has[taker].append(partition)
        loads[taker] += 1
    is_moving = True
    while is_moving:
        is_moving = False
        for has in readers.values():
            least = [(loads[member], member) for member in has]
            heapq.heapify(least)
            for giver in sorted((member for member in has if has[member]), key=lambda member: -loads[member]):
                while has[giver]:
                    taker = _least(least, loads)
                    if loads[taker] + 1 >= loads[giver]:
                        break
                    has[taker].append(has[giver].pop())
                    loads[giver] -= 1
                    loads[taker] += 1
                    is_moving = True


def _least(heap: list[tuple[int, str]], loads: Mapping[str, int]) -> str:
    """Return the member of a heap with the lowest load, as far as loads have only grown since."""
    while heap[0][0] != loads[heap[0][1]]:
        heapq.heapreplace(heap, (loads[heap[0][1]], heap[0][1]))
    return heap[0][1]


def ranges(
    members: Mapping[str, frozenset[bytes]],
    topics: Mapping[bytes, Sequence[int]],
    before: Mapping[str, Partitions],
) -> dict[str, Partitions]:
    """Return the partitions of each member: neighbours of each topic, in the order of the members.

    Topics with the same readers and the same number of partitions are divided alike.

    Args:
        members: The topics that each member subscribes to.
        topics: The partitions of these topics.
        before: Not used.
    """
    result: dict[str, set[Partition]] = {member: set() for member in members}
    for topic_id, numbers in topics.items():
        readers = [member for member, subscribed in members.items() if topic_id in subscribed]
        at = 0
        for place, member in enumerate(readers):
            end = at + len(numbers) // len(readers) + (place < len(numbers) % len(readers))
            result[member].update((topic_id, number) for number in numbers[at:end])
            at = end
    return {member: frozenset(partitions) for member, partitions in result.items()}


Assignor = Callable[
    [Mapping[str, frozenset[bytes]], Mapping[bytes, Sequence[int]], Mapping[str, Partitions]],
    dict[str, Partitions],
]
ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": ranges}
"""Assignors by name; the first is the default."""
