"""The parts of jobs/group_report.py."""
