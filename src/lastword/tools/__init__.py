"""Inspection: `dump` decodes any file of a log directory, `verify` checks every invariant of its logs,
`explain` names the rule that keeps or frees each record of a key, `duplication` counts superseded records,
`audit` compares a consumer's data with the log, `md5` finds keys that Kafka's cleaner cannot tell apart,
`simulate` replays which record replaced which under other settings, with the cleaner's own choice.
`kafka_model` is a model of Kafka's cleaner, for `lastword demo` and the tests that run beside Kafka.

Stands on `segment`, `partition` and `resolve`, and for what is decided on `cleaner`; takes no lock and
changes nothing, so all of them may be used on the directory of a running broker. Damage does not stop `dump`
and `verify`: it is reported and passed over. Start reading at `walk.py`.
"""
