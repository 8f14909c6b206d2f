"""Import jobs in the tests' own process, where a test's uncommitted rows are seen."""

from __future__ import annotations

from hud.ingest import import_jobs


def process_imports() -> int:
    """Process every import that waits, in their turn; return how many."""
    done = 0
    while job := import_jobs.next_job():
        import_jobs.process(job)
        done += 1
    return done
