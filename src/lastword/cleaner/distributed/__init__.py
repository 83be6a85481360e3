"""Clean where the log is not open: builds by a worker, and one giant partition in many steps."""
