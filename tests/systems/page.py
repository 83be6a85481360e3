"""The page of outside systems, from their saved results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.jars import KAFKA_VERSION
from tests.systems.table import SUITES, SYSTEMS

PAGE = Path(__file__).parents[2] / "docs" / "systems.md"
RESULTS = Path(__file__).parent / "results.json"
NAMES = ("lastword", "Kafka")


def page(results: dict[str, Any]) -> str:
    """Return the text of docs/systems.md.

    Args:
        results: The saved results, by name of the row.
    """
    shown = {
        "copy": "copies each record",
        "count": "counts the records of each key",
        "lines": "writes values to a file, and its lines to a topic",
        "mirror": "copies a topic to the other cluster",
    }
    lines = [
        "# Outside systems",
        "",
        "Written by `make systems` from the results of its last runs. The test command does not run it.",
        "Each system runs twice on the server, and twice on a real Kafka beside it. Between its two lives",
        "the system is stopped, the server's logs are cleaned, and its state's files are removed.",
        "After each life the newest values of the target are compared with a dict: right, if they are equal.",
        "The column for a bucket is of `make systems BUCKET=1`: the server of a log in a bucket of moto.",
        "",
        f"| system | packages | shown | lastword | in a bucket | Kafka {KAFKA_VERSION} | records | date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for system in SYSTEMS:
        text = shown[system.does] + (f"; {system.remark}" if system.remark else "")
        result = results.get(system.name, {"missing": "no run yet"})
        if result.get("missing"):
            cells = [f"not run: {result['missing']}", "", "", "", ""]
        else:
            ours, kafkas = (result["differences"][name] or "right" for name in NAMES)
            cells = [ours, _in_bucket(result), kafkas, f"{result['records']}", result["date"]]
        lines.append(_line(system.name, _names(system.packages), text, *cells))
    lines += [
        "",
        "## Own test suites",
        "",
        "The tests of a client run against both servers. A test that fails on both is a matter of the suite",
        "or of the set-up: one broker, no Docker, no authorizer. A test that did not end counts as failed.",
        "Tests that are skipped on lastword only need an API that the server does not offer: share groups.",
        "",
        f"| suite | package | lastword | in a bucket | Kafka {KAFKA_VERSION} | failed in a bucket only "
        "| on lastword only | on Kafka only | on both | skipped on lastword only | date |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for suite in SUITES:
        result = results.get(suite.name, {"missing": "no run yet"})
        name = suite.name + (f"; {suite.remark}" if suite.remark else "")
        if result.get("missing"):
            cells = [f"not run: {result['missing']}", "", "", "", "", "", "", "", ""]
        else:
            ours, kafkas = (_counts(result["counts"][server]) for server in NAMES)
            failed = (*(result["only"][server] for server in NAMES), result["both"], result["skipped"])
            lists = [_names(tests) or "none" for tests in failed]
            only = _names(failed_in_bucket(result)) or (
                "none" if "counts" in result.get("bucket", {}) else ""
            )
            cells = [ours, _in_bucket(result), kafkas, only, *lists, result["date"]]
        lines.append(_line(name, _names(suite.packages[:1]), *cells))
    return "\n".join(lines) + "\n"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _in_bucket(result: Any) -> str:
    """Return the cell for the run over a bucket, with its date."""
    bucket = result.get("bucket")
    if bucket is None:
        return "no run yet"
    if "missing" in bucket:
        return f"not run: {bucket['missing']}"
    shown = _counts(bucket["counts"]) if "counts" in bucket else bucket["difference"] or "right"
    return f"{shown} ({bucket['date']})"


def failed_in_bucket(result: Any) -> list[str]:
    """Return the tests of a suite that failed over a bucket and not over a directory."""
    bucket = result.get("bucket", {})
    wrong = {*result["only"][NAMES[0]], *result["both"]}
    left = sum(result["counts"][NAMES[0]].values()) - sum(bucket.get("counts", {}).values())
    return [
        *(test for test in bucket.get("failed", ()) if test not in wrong),
        *[f"{left} did not end"] * ("counts" in bucket and left > 0),
    ]


def _names(names: Iterable[str]) -> str:
    return "<br>".join(f"`{name}`" for name in names)


def _line(*cells: str) -> str:
    texts = (cell.replace("|", "/").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(texts)} |".replace("  |", " |")


def compared(ended: dict[str, dict[str, str]]) -> Any:
    """Return the counts of outcomes, and the tests that failed on one server only and on both.

    Those that were skipped on the server and passed on Kafka need an API that the server does not have.

    A test without an outcome counts as failed if it has an outcome on the other server.
    """
    every = sorted(set().union(*ended.values()))
    wrong = {
        name: {test for test in every if outcome.get(test, "failed") == "failed"}
        for name, outcome in ended.items()
    }
    counts = {name: dict(sorted(Counter(outcome.values()).items())) for name, outcome in ended.items()}
    ours, kafkas = (wrong[name] for name in NAMES)
    only = {NAMES[0]: sorted(ours - kafkas), NAMES[1]: sorted(kafkas - ours)}
    both = sorted(ours & kafkas)
    skipped = sorted(
        test
        for test in every
        if ended[NAMES[0]].get(test) == "skipped" and ended[NAMES[1]].get(test) == "passed"
    )
    return {"counts": counts, "only": only, "both": both, "skipped": skipped}


def is_bucket_different(result: Any) -> bool:
    """Return whether something is wrong over a bucket that is right over a directory."""
    bucket = result.get("bucket", {})
    if result.get("missing") or "missing" in bucket:
        return False
    if "only" in result:
        return bool(failed_in_bucket(result))
    return bool(bucket.get("difference")) and not result["differences"][NAMES[0]]


def is_ours(result: Any) -> bool:
    """Return whether a result has something wrong on the server that is right on Kafka."""
    if result.get("missing"):
        return False
    if "only" in result:
        return bool(result["only"][NAMES[0]])
    ours, kafkas = (result["differences"][name] for name in NAMES)
    return bool(ours) and not kafkas
