"""What users hold: `open`, `LogDir`, `Topic`, `Reader`, `Record`, and the values that calls return.

Stands on `logdir`, and on `cleaner`, `state` and `tools` for the verbs. Start reading at `logs.py`, then
`topic.py`. Verbs are functions over the directories that are open (`open_dirs.py`). Nothing here
imports kernels or Arrow before a call needs them.
"""
