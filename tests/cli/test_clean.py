"""The output of `lastword clean` on many partitions."""

from __future__ import annotations

import json

import lastword
from lastword.cli.clean import MOST_LINES
from lastword.cli.main import run


def test_many_cleanings_are_shown_by_topic(tmp_path, capsys):
    many = MOST_LINES + 1
    data = str(tmp_path / "data")
    outputs = []
    for options in ([], ["-v"], ["--json"]):
        with lastword.open(data, "a", log_cleaner_enable=False) as logs:
            users = logs.create_topic("users", partitions=many, cleanup_policy="compact", exist_ok=True)
            for partition in 2 * list(range(many)):
                users.append(b"key", b"value", partition=partition)
        assert run(["clean", data, *options]) == 0
        outputs.append(capsys.readouterr())
    brief, details, rows = outputs
    by_topic, totals = brief.out.splitlines()
    assert by_topic.startswith(f"users: {many} partitions, {2 * many} records -> {many}, freed ")
    assert totals.startswith("read ") and "-v shows each partition" in brief.err
    assert sum(line.startswith("users-") for line in details.out.splitlines()) == many
    kinds = [json.loads(line)["type"] for line in rows.out.splitlines()]
    assert kinds == ["round"] * many + ["summary"]
