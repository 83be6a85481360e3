"""The garbage index: the accounts of each closed segment, kept between cleanings.

Uses `resolve`, whose running map and bitmaps it keeps, saves and discards. It reads the files of one
partition and has no policy: `cleaner.policy.generational` decides from the values here what is worth
cleaning. All of it is derived from the log, and is made again if it does not fit. Start with `values.py` (an
account), then `ledger.py`.
"""

from lastword.accounts.values import DriveAccount, PartitionAccount, SegmentAccount

__all__ = ["DriveAccount", "PartitionAccount", "SegmentAccount"]
