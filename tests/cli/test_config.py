"""Check `lastword config`: typed values in JSON, durations as people type them."""

import json

import pytest

from lastword.cli import main


@pytest.fixture
def data(tmp_path, capsys):
    settings = ["--set", "cleanup.policy=compact,delete", "--set", "retention.ms=60 m"]
    assert main.run(["create", str(tmp_path / "data"), "users", *settings]) == 0
    capsys.readouterr()
    return str(tmp_path / "data")


def test_values_in_json_have_their_own_types(data, capsys):
    assert main.run(["config", data, "users", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    values = {row["name"]: row["value"] for row in rows if row["type"] == "setting"}
    assert values["cleanup.policy"] == ["compact", "delete"]
    assert values["segment.bytes"] == 1 << 30
    assert values["min.cleanable.dirty.ratio"] == 0.5
    assert values["preallocate"] is False
    assert values["compression.type"] == "producer"

    assert main.run(["config", data, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    values = {row["name"]: row["value"] for row in rows if row["type"] == "setting"}
    assert values["log.cleaner.io.max.bytes.per.second"] is None
    assert values["cleanup.policy"] is None
    assert values["lastword.space.target"] == 1.5
    assert values["drives"] == {} and values["log.dirs"] == []


def test_a_duration_may_have_a_space_before_its_unit(data, capsys):
    assert main.run(["config", data, "users", "--json"]) == 0
    rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert [row["value"] for row in rows if row.get("name") == "retention.ms"] == [3_600_000]
    assert main.run(["config", data, "users"]) == 0
    header, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert header == ["SETTING", "VALUE", "SOURCE"] and ["segment.bytes", "1GiB", "default"] in lines
    assert main.run(["config", data, "users", "--set", "retention.ms=60 minutes"]) == 2
    assert "'60 minutes' is not a duration" in capsys.readouterr().err
