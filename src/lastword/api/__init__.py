"""The public objects: `open`, `LogDir`, `Topic`, `Reader`, `Record`, and the values that calls return.

Uses `logdir`, and `cleaner`, `state` and `tools` for the verbs. Start reading at logs.py, then topic.py.
Verbs are functions over the open directories (open_dirs.py). No module here imports kernels or Arrow before
a call needs them.
"""
