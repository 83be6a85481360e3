"""Clean and expire in the background of a process: the scheduler, its states, and its work."""
