"""Fakes of `Files` and `Clock` for tests.

`RecordingFiles` (recording.py) lists every call, stops at the n-th change, or lets a chosen call fail.
`ForgetfulFiles` (forgetful.py) tracks which changes were synced, and makes directories as a power cut would
leave them.
"""

from tests.fakes.forgetful import ForgetfulFiles, Image
from tests.fakes.recording import Call, RecordingFiles, Stopped

__all__ = ["Call", "ForgetfulFiles", "Image", "RecordingFiles", "Stopped"]
