"""Spark with Delta Lake as another reader and writer of exported tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc")
pytest.importorskip("deltalake")

from deltalake import DeltaTable

import lastword
from lastword.errors import TableRefusedError
from tests.lake.histories import History, Violation, keyed, rows_of
from tests.support.delta import connect, delta_server, rows_at
from tests.support.exhaustive import only_exhaustive
from tests.support.stores import ServerMissing

pytestmark = [pytest.mark.spark, pytest.mark.beside, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        with delta_server(tmp_path_factory.mktemp("delta")) as address, connect(address) as session:
            yield session
    except ServerMissing as missing:
        if missing.must_not_skip:
            raise
        pytest.skip(str(missing))


@pytest.mark.parametrize("seed", [12, 24])
def test_versions_of_a_history(session: Any, tmp_path: Path, seed: int) -> None:
    history = History(seed, tmp_path)
    history.run()
    assert len(history.versions) > 2
    assert bool(history.counts["vectors"]) == (history.layout == "vectors")
    chosen = [*history.versions][:: len(history.versions) // 3]  # `make lake` reads all
    history.versions = {version: history.versions[version] for version in chosen}
    history.check_in_spark(session)
    version, rows = next((version, rows) for version, rows in history.versions.items() if rows)
    position, (key, _) = next(iter(rows.items()))
    history.versions = {version: {**rows, position: (key, "another value")}}
    with pytest.raises(Violation, match=f"version {version} in Spark"):
        history.check_in_spark(session)


@pytest.mark.parametrize("layout", ["vectors", pytest.param("merge", marks=only_exhaustive)])
def test_what_delta_writes(session: Any, tmp_path: Path, layout: str) -> None:
    """DELETE is refused until RESTORE; OPTIMIZE and VACUUM are passed."""
    table = str(tmp_path / "table")

    def sql(text: str) -> None:
        session.sql(text.format(f"delta.`{table}`")).collect()

    with lastword.open(tmp_path / "log", "a", log_cleaner_enable=False) as logs:
        options = {"cleanup_policy": "compact", "key_serializer": "str", "value_serializer": "str"}
        topic = logs.create_topic("t", 2, **options)

        def export(first: int, last: int, value: str | None) -> Any:
            topic.extend([(f"k{number}", value) for number in range(first, last)])
            return topic.export(f"delta:{table}", layout=layout)

        def newest() -> Any:
            return {(r.partition, r.offset): (r.key, r.value) for r in topic.newest()}

        export(0, 60, "first")
        exported = export(0, 15, "second")
        sql("DELETE FROM {} WHERE key IN ('k3', 'k40')")
        with pytest.raises(TableRefusedError, match="DELETE of another program"):
            export(15, 20, None)
        sql(f"RESTORE TABLE {{}} TO VERSION AS OF {exported.version}")
        assert export(20, 25, "third").removed_rows == 10
        assert rows_of(table) == newest()
        sql("OPTIMIZE {}")
        assert export(22, 30, "fourth").removed_rows == 8
        assert rows_of(table) == newest()
        sql("VACUUM {} RETAIN 0 HOURS")
        assert export(28, 35, None).removed_rows == 7
        last = DeltaTable(table).version()
        assert keyed(rows_at(session, table, [last])[last]) == newest() == rows_of(table)
        assert topic.export(f"delta:{table}", layout=layout).version is None
