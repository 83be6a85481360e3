"""The command line: one file per command, values rendered in `output.py` as text or JSON.

Stands on `api` and `tools`. Start reading in `main.py` (errors and exit codes), then `command.py` and
`target.py`, then any command. Modules that a command does not need are imported inside it: `create`,
`append` and `dump` must start fast.
"""
