"""The reasons in a receipt why a part of a file did not become a measurement."""

from __future__ import annotations

NO_METRIC = "the record has no metric"
NO_VALUES = "the metric has no values"
EMPTY_CELL = "the cell is empty"
NULL_VALUE = "the value is null"
TAG = "the tag of a run is a setting, no metric"
FILLED_UP = "the row tells of a failure; the script filled its other columns with 0"
SHORT_ROW = "the row is shorter than the header; its last columns have no values"
ANOTHER_HEADER = "the row has fewer compile phases than the header, which is another model's"
UNTOLD_HEADER = "other rows do not fit the header, and whether this one does cannot be told"
BAD_JSON = "the JSON of the line cannot be read"
AVERAGE_ROW = "the row is the average over the shapes, which have rows of their own"
NOT_A_NUMBER = "the column holds texts, not numbers"
UNKNOWN_NAME = "the metric's name is not made as this benchmark makes them"
TARGET = "the value is a target of the benchmark's own, not a measurement"
NO_VALUE_WRITTEN = "-1 is how the script writes that there is no value"
NO_NUMBER_INSIDE = "the counters hold no number"
OTHER_VALUE = "this upload holds the same experiment and metric with another value"
STORED_VALUE = "the run already has this experiment and metric with another value"
TOO_MANY_TIMES = "the run has this experiment and metric at too many times"
CLOSED_RUN = "the run is one of this hud's own runner, to which an upload adds nothing"
OTHER_TASK = "the record does not belong to the task"
UNEXPECTED = "the runner marked the record: it does not belong to the task that wrote it"

REASONS = tuple(value for name, value in dict(globals()).items() if name.isupper())
