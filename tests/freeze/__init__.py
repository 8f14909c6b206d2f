"""Record what a checkout does, seen from outside, and compare two recordings.

    python -m tests.freeze record FOLDER [--checkout DIR] [--inputs DIR] [--only PART,…] [--old DIR]
    python -m tests.freeze compare FOLDER FOLDER

Only HTTP, the command line and SQL are used, so that this code can be pointed at any checkout. Nothing of
`hud` or `runner` is imported. A recording has one text file for each thing, in which everything that
differs from one recording to the next (ids, times, names of hosts, measured numbers) is masked.
"""
