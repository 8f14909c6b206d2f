"""Measures a model with the stages of the torchdynamo harness."""

from runner.suites.torchdynamo.run import run

__all__ = ["run"]
