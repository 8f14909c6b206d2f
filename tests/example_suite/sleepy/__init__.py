"""A suite that sleeps: the example of docs/add_a_suite.md."""

from runner.schema.options import Option
from runner.schema.suite import Case, Suite

SUITE = Suite(
    name="sleepy",
    title="Sleep for a while",
    cases=(Case("nap", "A short sleep", dtypes=("float32",)),),
    backends=("eager",),
    devices=("cpu",),
    options=(Option("duration_ms", "int", "milliseconds to sleep", low=1, high=1000, default=1),),
    headline_metrics=("nap_ms",),
    timeout_s=60,
)
