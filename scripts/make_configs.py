"""Write the table of Kafka's settings, `src/lastword/server/kafka_configs.jsonl`, from Kafka's own jars.

    python scripts/make_configs.py

One line for each public setting of topics and brokers: scope, name, type, default, and the broker's settings
that its value may come from. A test in `tests/kafka/` fails when the file is not what the jars
give.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src" / "lastword" / "server" / "kafka_configs.jsonl"


def text(configs: dict[str, list[dict[str, Any]]]) -> str:
    """Return the text of the table, from the answer of `Tools` to "configs"."""
    rows = [{"scope": scope, **row} for scope in ("topic", "broker") for row in configs[scope]]
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tests.support.jars import KafkaJars
    from tests.support.kafka import Tools

    with Tools(KafkaJars.find_or_fetch()) as tools:
        TARGET.write_text(text(tools.ask("configs")), encoding="utf-8")


if __name__ == "__main__":
    main()
