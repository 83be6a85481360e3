"""Garbage accounts: what each closed segment holds of dead records, kept between cleanings.

Stands on `resolve`, whose running map and bits it keeps, saves and throws away. It knows the files of one
partition and no policy: what is worth cleaning `cleaner.generational` decides from the values here. All of it
is derived from the log: discarded and made anew whenever anything does not fit. Start reading at `values.py`
(what an account says), then `ledger.py`.
"""

from lastword.accounts.values import DriveAccount, PartitionAccount, SegmentAccount

__all__ = ["DriveAccount", "PartitionAccount", "SegmentAccount"]
