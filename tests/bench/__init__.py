"""Figures on this machine: `make bench [PART=start,ingest,import,judge,pages]`. No test asserts any of them.

CPU time, not wall time: a busy machine disturbs it little.
"""
