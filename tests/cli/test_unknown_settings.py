"""Commands over a broker's directory whose metadata is elsewhere, and over topics with the empty policy."""

from __future__ import annotations

import json

import pytest

import lastword
from lastword.cli import main
from tests.logdir.test_broker import as_of_a_broker, config_record, files_below, topic_record, write_log
from tests.logdir.test_broker import root as root  # the fixture


@pytest.fixture
def elsewhere(root, monkeypatch):
    """Change to a directory with `data`, a broker's, and `kraft`, which has its metadata. Two topics."""
    monkeypatch.chdir(root.parent)
    with lastword.open("data", "a", log_cleaner_enable=False) as logs:
        logs.create_topic("plain")
        for number in range(4):
            logs.topic("users").append(b"k", b"%d" % number)
    write_log(root, topic_record("users"), config_record("cleanup.policy", "compact"))
    as_of_a_broker(root)
    (root.parent / "kraft").mkdir()
    (root / "__cluster_metadata-0").rename(root.parent / "kraft" / "__cluster_metadata-0")
    return root


def run(capsys, *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main.run(list(arguments)) == code
    out, err = capsys.readouterr()
    return out, err


def test_one_line_says_that_settings_are_unknown_and_how_to_give_them(elsewhere, capsys, caplog):
    out, err = run(capsys, "ls", "data")
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["unknown", "unknown"]
    (line,) = err.splitlines()
    assert line.startswith("nothing is removed from 2 topics (plain, users): __cluster_metadata-0")
    assert "--metadata PATH" in line and "is not in data" in line
    for command in (["clean", "data", "--dry-run"], ["expire", "data", "--dry-run"]):
        out, err = run(capsys, *command)
        assert out.count("keep: no-policy, its settings are unknown") == 2
        assert [line for line in err.splitlines() if "--metadata" in line] == err.splitlines()
        assert len(err.splitlines()) == 1 and "cleanup.policy=compact" not in err
    for command in ("clean", "expire"):
        caplog.clear()
        run(capsys, command, "data")
        assert len(caplog.messages) == 1 and "--metadata" in caplog.messages[0]
        _, err = run(capsys, command, "data", "users", code=2)
        assert err.count("__cluster_metadata-0") == 1 and "fix: --metadata PATH" in err
    out, _ = run(capsys, "explain", "data", "users")
    assert "never cleaned" in out and "--metadata" in out and "--set" not in out
    out, _ = run(capsys, "config", "data", "users")
    values = {line.split()[0]: line.split()[1] for line in out.splitlines()}
    assert (values["cleanup.policy"], values["retention.ms"], values["segment.ms"]) == ("unknown",) * 2 + (
        "7d",
    )
    out, _ = run(capsys, "config", "data", "users", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert {row["name"]: row["value"] for row in rows if "name" in row}["delete.retention.ms"] is None


def test_metadata_is_named_and_only_read(elsewhere, capsys):
    before = files_below(elsewhere.parent / "kraft")
    out, err = run(capsys, "ls", "data", "--metadata", "kraft")
    assert out.splitlines()[2].split()[-1] == "compact" and "unknown" in out  # plain is not in the metadata
    assert "its topic id" in err and "no topic of that name" in err
    out, _ = run(capsys, "clean", "data", "users", "--metadata", "kraft")
    assert "4 records -> 1" in out
    assert files_below(elsewhere.parent / "kraft") == before
    _, err = run(capsys, "ls", "data", "--metadata", "data", code=2)
    assert "data has no __cluster_metadata-0" in err


def test_the_empty_policy_is_shown_and_set_as_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, "create", "data", "kept", "--set", "cleanup.policy=none")
    assert "cleanup.policy=none" in out + err
    run(capsys, "create", "data", "plain")
    run(capsys, "append", "data", "kept", "k", "v")
    run(capsys, "config", "data", "--set", "cleanup.policy=compact,delete", "--yes")
    out, _ = run(capsys, "ls", "data")
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["none", "compact,delete"]
    out, _ = run(capsys, "ls", "data", "--json")
    assert '"policy":"none"' in out
    for command in (["clean", "data", "kept"], ["clean", "data", "kept", "--due"]):
        _, err = run(capsys, *command, code=2)
        assert "cleanup.policy=none" in err and "compact" not in err
    out, err = run(capsys, "clean", "data", "kept", "--dry-run")
    assert "keep: cleanup.policy is none: nothing is compacted" in out and "--set" not in out + err
    out, err = run(capsys, "explain", "data", "kept")
    assert (
        "cleanup.policy is none" in out
        and "compact" not in out.replace("compacted", "")
        and "--set" not in out
    )
    run(capsys, "expire", "data", "kept")
    out, _ = run(capsys, "config", "data", "kept")
    assert "none" in next(line for line in out.splitlines() if line.startswith("cleanup.policy"))
    run(capsys, "config", "data", "kept", "--set", "cleanup.policy=")
    out, _ = run(capsys, "ls", "data")
    assert out.splitlines()[1].split()[-1] == "none"
