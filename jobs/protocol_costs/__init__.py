"""The parts of jobs/group_protocols.py."""
