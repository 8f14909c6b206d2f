"""Records of our own export: `benchmark.extra_info.hud` has the stored identity and the run. It wins over
all other fields, so that ingesting an export gives the same rows."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from runner.formats.errors import WrongRecord
from runner.formats.measurement import ParsedMeasurement, RunKey, info_of
from runner.formats.parameters import PLAUSIBLE, parse_time
from runner.formats.scalars import branch_name
from runner.schema.draws import MAX_DRAWS
from runner.schema.records import Record

_PLACE = "/benchmark/extra_info/hud"
_PATH = re.compile(r" - at `\$(?P<path>.*)`$")
_Text = Annotated[str, msgspec.Meta(max_length=200)]


class ExportedRun(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The run that an exported measurement belongs to."""

    uid: UUID
    at: str  # ISO 8601; the run's position in every series
    at_source: Literal["commit", "run", "upload"]
    source: _Text = ""
    external_id: _Text | None = None
    host: _Text = ""
    commit: _Text = ""
    branch: _Text = ""
    repo: _Text = ""
    environment: _Text = ""  # of an A/B comparison
    base_environment: _Text = ""

    def key(self, time: datetime | None) -> RunKey:
        at = parse_time(self.at)
        return RunKey(
            source=self.source[:100],
            external_id=self.external_id,
            host=self.host,
            commit=self.commit[:64],
            branch=branch_name(self.branch),
            repo=self.repo,
            order_time=at,
            order_time_source=self.at_source,
            uid=str(self.uid),
            interpreter=self.environment[:60],
            base_interpreter=self.base_environment[:60],
            point_time=None if time == at else time,
        )


class Exported(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The stored identity of an exported measurement, and its run."""

    suite: str
    case: str
    metric: str
    knobs: dict[str, Any]
    mode: str
    dtype: str
    backend: str
    device: str
    arch: str
    dynamic: bool
    process: Annotated[int, msgspec.Meta(ge=0, lt=2**15)] = 0  # of an A/B run: 2 * repeat + side
    draw: Annotated[int, msgspec.Meta(ge=0, lt=2 * MAX_DRAWS)] | None = None
    run: ExportedRun | None = None

    def fill(self, measurement: ParsedMeasurement, time: datetime | None) -> None:
        """Complete a measurement; `time` is its record's, which in a history is not that of its run."""
        for name in self.__struct_fields__:
            if name not in {"run", "process"}:
                setattr(measurement, name, getattr(self, name))
        if self.run:
            measurement.run = self.run.key(time)
        is_ab = measurement.run.base_interpreter
        measurement.repeat, measurement.side = divmod(self.process, 2) if is_ab else (self.process, 0)


def exported(record: Record) -> Exported | None:
    """Return what our export added, None for other records. Raise WrongRecord if it is incomplete."""
    value = info_of(record).get("hud")
    if not isinstance(value, dict):
        return None
    try:
        found = msgspec.convert(value, Exported)
    except msgspec.ValidationError as error:
        text = str(error)
        path = _PATH.search(text)
        pointer = path["path"].replace(".", "/") if path else ""
        raise WrongRecord(_PLACE + pointer, text[: path.start()] if path else text) from error
    if found.run and parse_time(found.run.at) is None:
        raise WrongRecord(f"{_PLACE}/run/at", f"a time such as 2026-11-21T07:52:00Z, {PLAUSIBLE}")
    return found
