"""Inspection of log directories, without a lock and without changes.

`dump` decodes any file of a log directory. `verify` checks every invariant of its logs. `explain` names the
rule that keeps or frees each record of a key. `duplication` counts superseded records. `audit` compares a
consumer's data with the log. `md5` finds keys that Kafka's cleaner cannot distinguish. `simulate` replays an
overwrite trace under other settings, with the cleaner's own choice.

The package uses `segment`, `partition`, `resolve` and the cleaner's decisions. All tools may be used on the
directory of a running broker. Damage does not stop `dump` and `verify`: they report it and continue after
it. Start reading at `findings.py`.
"""
