"""`LogConfig`: settings of the process that holds the directory, under Kafka's broker names."""

from __future__ import annotations

import dataclasses

from lastword.config.setting import (
    choice,
    count,
    directory,
    duration,
    flag,
    ratio,
    size,
    sizes_by_path,
    table,
    words,
)
from lastword.config.topic import ACKS, STRATEGIES
from lastword.units import MIB
from lastword.wire import INT32_MAX

DEFAULT_MAP_BYTES = 128 * MIB
DEFAULT_SPACE_TARGET = 1.5
DEFAULT_SURVIVORSHIP_ALPHA = 0.3


@dataclasses.dataclass(frozen=True)
class LogConfig:
    log_dirs: tuple[str, ...] = words(
        "behaviour",
        "Directories that are opened together, whichever of them is named; absolute paths. Not in a "
        "directory's own lastword.toml: in a file that is named by `--config` or `config=`, in the "
        "environment, or as an argument.",
    )
    log_retention_check_interval_ms: int = duration(
        "5m", "cost", "How often old segments are looked for.", low=1
    )
    producer_id_expiration_ms: int = duration(
        "1d", "behaviour", "A producer that was silent for longer is forgotten.", low=1
    )
    log_cleaner_enable: bool = flag(
        True, "behaviour", "Clean and expire in the background while opened to append."
    )
    log_cleaner_threads: int = count(
        1,
        "cost",
        "Rounds at once; they share the key map's memory. With 2 or more a cleaning that was asked for takes "
        "two of them for one large partition.",
        low=1,
        high=1024,
    )
    log_cleaner_dedupe_buffer_size: int = size(
        DEFAULT_MAP_BYTES,
        "cost",
        "Memory of all threads' key maps. Too small for a log's keys: more passes, never a wrong result.",
        low=1 << 16,
    )
    lastword_map_scratch: str | None = directory(
        "cost",
        "Where the keys of key maps lie, in mapped files without a name: a drive, in place of memory. What "
        "log.cleaner.dedupe.buffer.size bounds is then the rest, 10 bytes a key. Off: in memory.",
    )
    log_cleaner_io_max_bytes_per_second: int | None = size(
        None, "cost", "What cleaning may read and write per drive and second. Not set: no limit.", low=1
    )
    log_cleaner_backoff_ms: int = duration(
        "15s", "cost", "Pause of the background when nothing was due, and before its first look."
    )
    drives: dict[str, int] = sizes_by_path("cost", "The limit of single drives, by path.")  # noqa: RUF009
    lastword_ack: str = choice(
        "os", "behaviour", "As the topic setting, for all topics that do not say.", ACKS
    )
    lastword_strategy: str = choice(
        "generational", "cost", "As the topic setting, for all topics that do not say.", STRATEGIES
    )
    lastword_space_target: float = ratio(
        DEFAULT_SPACE_TARGET,
        "cost",
        "What a drive may hold, as a multiple of its live data. Higher: less rewriting, longer restores.",
        low=1.1,
        high=10,
    )
    lastword_survivorship_alpha: float = ratio(
        DEFAULT_SURVIVORSHIP_ALPHA,
        "cost",
        "Weight of the newest observation where garbage can only be estimated.",
        low=0.01,
    )
    lastword_decompression_max_bytes: int = size(
        "256MiB",
        "behaviour",
        "What the records of one batch may take when decompressed; a larger batch is DecompressionLimitError "
        "for every reader. Reading a batch of that size takes up to three times as much memory.",
        low=1 << 16,
        high=INT32_MAX,
    )
    sources: dict[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def source(self, name: str) -> str:
        """Where a value comes from: `argument`, `environment`, `lastword.toml:1` or `default`."""
        return self.sources.get(name.replace("_", "."), "default")

    @property
    def map_bytes(self) -> int:
        """Key map of one thread."""
        return self.log_cleaner_dedupe_buffer_size // self.log_cleaner_threads


INSTANCE_SETTINGS = table(LogConfig)
