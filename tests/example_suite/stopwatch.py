"""An example format: a CSV with a case and its milliseconds in each row, such as `nap,1.5`."""

from runner.formats.layout import Layout, Quantity

LAYOUT = Layout("stopwatch", case="case", quantities={"length (ms)": Quantity("nap_ms", "ms", "down")})
FORMAT = LAYOUT.of_tables("stopwatch")
