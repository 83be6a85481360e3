"""Clean one partition: scan, rewrite, certify, publish, report."""
