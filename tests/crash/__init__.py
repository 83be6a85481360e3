"""Tests of crashes, kills and failing drives: every guarantee holds after each of them.

memory.py      a filesystem in memory, so that opening an image costs no system call
power.py       every image that a power cut can leave, from the journal of `ForgetfulFiles`
history.py     attempts and acknowledgements by moment: the oracle for an image
invariants.py  I1 to I13, each violation under its name
scenarios.py   what processes do to a directory while power is cut
enumerate.py   images x invariants; `make crash N=100000`
planted.py     planted bugs: the harness must name each of them
kills.py       processes ended by SIGKILL at random moments; `make kills N=2000`
faults.py      the n-th system call fails, for every n
"""
