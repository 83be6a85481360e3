"""Looking: `dump` shows any file of a log directory decoded, `verify` checks every invariant of its logs,

`simulate` replays which record replaced which under other settings, with the cleaner's own choice.

Stands on `segment` and `partition`, and for what is decided on `cleaner`; takes no lock and changes nothing, so both may be used on the
directory of a running broker. Damage does not stop them: it is reported and passed over. Start reading at
`walk.py`.
"""
