"""Looking: `dump` shows any file of a log directory decoded, `verify` checks every invariant of its logs.

Stands on `segment` and `partition`; takes no lock and changes nothing, so both may be used on the
directory of a running broker. Damage does not stop them: it is reported and passed over. Start reading at
`walk.py`.
"""
