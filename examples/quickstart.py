"""Use lastword for five minutes: a dict whose changes are a log.

Run it twice: the second run restores the dict from the log of the first.

python examples/quickstart.py [DIRECTORY]
"""

from __future__ import annotations

import sys

import lastword


def main(directory: str) -> None:
    with lastword.open(directory, "a") as logs:  # created if absent; one writer at a time
        users = logs.state("users")  # a dict whose changes are a log
        print("restored:", dict(users))
        users["ada"] = {"city": "London"}
        users["ada"] = {"city": "Turin"}
        users["bob"] = {"city": "Oslo"}
        del users["bob"]

    with lastword.open(directory) as logs:  # another day: read only, no lock
        print(dict(logs.state("users")))  # {'ada': {'city': 'Turin'}}
        for r in logs.topic("users").read():
            print(r.offset, r.key, r.value)  # 0 ada {'city': 'London'} ... 3 bob None
        for plan in logs.plan("users"):
            print("plan:", plan)

    with lastword.open(directory, "a") as logs:
        for done in logs.clean("users"):
            print(done)  # users-0: 4 records -> 2; the tombstone at 3 may go in 24 h
        print("verified:", logs.verify())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
