"""Directories that real Kafka wrote, read and cleaned by lastword. `loader` opens a case; `data/README.md` says what is in one."""
