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
    """Settings of the process; units are part of the names, as in `TopicConfig`."""

    log_dirs: tuple[str, ...] = words(
        "behaviour",
        "Absolute paths of directories that are opened together, whichever of them is named. Set it in a "
        "file named by `--config` or `config=`, in the environment, or as an argument; not in the "
        "lastword.toml of a directory.",
    )
    log_retention_check_interval_ms: int = duration(
        "5m", "cost", "Interval between checks for expired segments.", low=1
    )
    producer_id_expiration_ms: int = duration(
        "1d", "behaviour", "The state of a producer that is silent for longer is removed.", low=1
    )
    log_cleaner_enable: bool = flag(
        True, "behaviour", "Clean and expire in the background while opened to append."
    )
    log_cleaner_threads: int = count(
        1,
        "cost",
        "Cleanings that run in parallel; they share the memory of the key map. With 2 or more, a call of "
        "`clean` uses two threads for a large partition.",
        low=1,
        high=1024,
    )
    log_cleaner_dedupe_buffer_size: int = size(
        DEFAULT_MAP_BYTES,
        "cost",
        "Memory for the key maps of all threads. If a log's keys do not fit: more passes, never a wrong "
        "result.",
        low=1 << 16,
    )
    lastword_map_scratch: str | None = directory(
        "cost",
        "Directory for the keys of key maps, in mapped files without a name instead of memory. "
        "log.cleaner.dedupe.buffer.size then limits the rest, 10 bytes per key. Off: keys are in memory.",
    )
    log_cleaner_io_max_bytes_per_second: int | None = size(
        None,
        "cost",
        "Limit for what cleaning reads and writes per drive and second. Not set: no limit.",
        low=1,
    )
    log_cleaner_backoff_ms: int = duration(
        "15s", "cost", "Pause of the background cleaner when nothing is due, and before its first check."
    )
    drives: dict[str, int] = sizes_by_path("cost", "Limits for single drives, by path.")  # noqa: RUF009
    lastword_ack: str = choice("os", "behaviour", "Default of the topic setting of this name.", ACKS)
    lastword_strategy: str = choice(
        "generational", "cost", "Default of the topic setting of this name.", STRATEGIES
    )
    lastword_space_target: float = ratio(
        DEFAULT_SPACE_TARGET,
        "cost",
        "Space limit of a drive, as a multiple of its live data. Higher: less rewriting, longer restores.",
        low=1.1,
        high=10,
    )
    lastword_survivorship_alpha: float = ratio(
        DEFAULT_SURVIVORSHIP_ALPHA,
        "cost",
        "Weight of the newest observation when garbage is estimated.",
        low=0.01,
    )
    lastword_decompression_max_bytes: int = size(
        "256MiB",
        "behaviour",
        "Largest decompressed size of one batch; a larger batch raises DecompressionLimitError for every "
        "reader. Reading a batch of that size takes up to three times as much memory.",
        low=1 << 16,
        high=INT32_MAX,
    )
    sources: dict[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def source(self, name: str) -> str:
        """Return where a value comes from: `argument`, `environment`, `lastword.toml:1` or `default`."""
        return self.sources.get(name.replace("_", "."), "default")

    @property
    def map_bytes(self) -> int:
        """Memory for the key map of one thread."""
        return self.log_cleaner_dedupe_buffer_size // self.log_cleaner_threads


INSTANCE_SETTINGS = table(LogConfig)
