"""Check the names of measurements, find or make their series and environments, by a fixed number of bulk
statements in the caller's transaction, and decide unit and direction of their metrics: what the registry or
an operator says, else what the first record says. Values in another unit are converted to it, or refused."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from operator import attrgetter
from typing import Any

import orjson
from django.db.models import Model

from hud.models import Aliases, Experiment, Metric, Run, Series, SeriesState
from hud.models import Environment as EnvironmentRow
from hud.sql import fetch_tuples, given_rows, insert
from runner.formats.errors import WrongRecord
from runner.formats.measurement import ParsedMeasurement, RunKey
from runner.formats.metric_values import check_values
from runner.formats.scalars import invisible_in, nfc
from runner.schema.metrics import METRICS, convert, is_known, metric_info, says_unit
from runner.schema.records import CLASS_PACKAGES, Environment

_MOST_LISTED = 100  # metrics in a receipt
_MOST_WARNED_OF = 10
_KEY = attrgetter("metric", "unit", "direction")
_FIRST = datetime(1970, 1, 1, tzinfo=timezone.utc)  # before every point
_MAX_IDENTITY_BYTES = 2000  # a row of PostgreSQL's index has about 2,700
_SUITE = re.compile(r"(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,60}")
_LIMITS = {  # characters, in the order of an identity
    "suite": 60, "case": 200, "knobs_key": 4000, "mode": 40, "dtype": 40, "backend": 100, "device": 40,
    "arch": 100,
}  # fmt: skip
_SHOWN = {"knobs_key": "settings"}
RowKey = tuple[int, int, int, int, int]  # run, series, environment, repeat, side


def rename_by(aliases: Aliases, measurement: ParsedMeasurement) -> None:
    """Give a measurement the current names of its suite, case, arch and host."""
    if not aliases:
        return
    measurement.suite = suite = aliases.current("suite", nfc(measurement.suite))
    measurement.case = aliases.current("case", nfc(measurement.case), suite)
    measurement.arch = aliases.current("arch", nfc(measurement.arch), suite)
    host = aliases.current("host", measurement.run.host)
    if host != measurement.run.host:
        measurement.run = replace(measurement.run, host=host)


def check_names(measurement: ParsedMeasurement) -> None:
    """Write the names in one form. Raise WrongRecord for names that cannot be stored."""
    escaped = "\\u" in measurement.knobs_key  # JSON, which escapes what is not ASCII
    settings = json.dumps(measurement.knobs, ensure_ascii=False) if escaped else ""
    if character := invisible_in("".join((*measurement.identity[:8], measurement.metric, settings))):
        raise WrongRecord("", f"a name or a setting holds the invisible character {character}")
    measurement.metric = nfc(measurement.metric)
    for name, limit in _LIMITS.items():
        value = nfc(getattr(measurement, name))
        setattr(measurement, name, value)
        if len(value) > limit:
            raise WrongRecord("", f"the {_SHOWN.get(name, name)} is longer than {limit} characters")
    joined = "".join(measurement.identity[:8])
    if len(joined.encode("utf-8", "surrogatepass")) > _MAX_IDENTITY_BYTES:
        raise WrongRecord("", f"names and settings together are longer than {_MAX_IDENTITY_BYTES} bytes")
    if not _SUITE.fullmatch(measurement.suite):
        raise WrongRecord("", "a suite's name has 1 to 60 characters, no slash and no control character")
    if len(measurement.metric) > 200:
        raise WrongRecord("/metric/name", "the metric's name is longer than 200 characters")


def row_keys(measurements: Sequence[ParsedMeasurement], runs: Mapping[RunKey, Run]) -> list[RowKey]:
    """Return the key of each measurement's row; make the series and environments that are not there yet."""
    # measurements of one upload share their environment's object, and its fingerprint takes a while
    distinct = {id(item.environment): item.environment for item in measurements}
    fingerprints = {key: environment.fingerprint() for key, environment in distinct.items()}
    ids = _environment_ids({fingerprints[key]: environment for key, environment in distinct.items()})
    environments = {key: ids[fingerprint] for key, fingerprint in fingerprints.items()}
    own = [(item, runs[item.run]) for item in measurements]
    digests = [_digest(item, run.stream_id) for item, run in own]
    known = "SELECT digest, id FROM hud_series WHERE digest = ANY(%s::text[])"
    series: dict[str, int] = dict(fetch_tuples(known, [f"{{{','.join(digests)}}}"]))
    missing = {
        digest: (item, run.stream_id)
        for digest, (item, run) in zip(digests, own, strict=True)
        if digest not in series
    }
    if missing:
        series |= _new_series(missing)
    return [
        (run.pk, series[digest], environments[id(item.environment)], item.repeat, item.side)
        for digest, (item, run) in zip(digests, own, strict=True)
    ]


def _digest(item: ParsedMeasurement, stream: int | None) -> str:
    """Return 32 hex digits over what makes a series. NUL, which no text holds, keeps the parts apart."""
    identity = "\0".join((*item.identity[:8], "1" if item.dynamic else "0", item.metric, str(stream)))
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _new_series(missing: Mapping[str, tuple[ParsedMeasurement, int | None]]) -> dict[str, int]:
    """Return the series of these digests; make those that are not there. Knobs that are equal in other words
    (1 and 1.0) are one series, which keeps its first digest."""
    identities = {digest: item.identity for digest, (item, _stream) in missing.items()}
    metrics = metric_ids(sorted({item.metric for item, _stream in missing.values()}))
    distinct = sorted(set(identities.values()))
    keys = dict(zip(Experiment.IDENTITY, zip(*distinct, strict=True), strict=True))
    keys["knobs"] = tuple(map(orjson.Fragment, keys["knobs"]))
    experiments = dict(zip(distinct, ids_of(Experiment, keys), strict=True))
    rows = [
        {
            "experiment_id": experiments[identities[digest]],
            "metric_id": metrics[item.metric],
            "stream_id": stream,
            "digest": digest,
        }
        for digest, (item, stream) in missing.items()
    ]
    insert(Series, rows)
    # those of equal knobs keep their digest; renamed ones, which have lost theirs, get this one
    known = f"""
        WITH known AS (
            SELECT given.digest, s.id FROM {given_rows(Series, rows[0])} JOIN hud_series s
            USING (experiment_id, metric_id, stream_id) ORDER BY s.id
        ), named AS (
            UPDATE hud_series s SET digest = known.digest FROM known
            WHERE s.id = known.id AND s.digest IS NULL
        )
        SELECT digest, id FROM known
        """  # noqa: S608 — only names of columns are put into the text  # nosec B608
    return dict(fetch_tuples(known, [orjson.dumps(rows).decode()]))


def ids_of(
    model: type[Model],
    keys: Mapping[str, Sequence[Any]],
    more: Callable[[int], dict[str, Any]] = lambda _place: {},
) -> list[int]:
    """Return the ids of distinct rows, which `keys`, columns with their values, tell apart; make those that
    are not there, with `more` columns of a row by its place.

    Look first, insert only what is missing, look again: a row that a concurrent upload inserts meanwhile is
    waited for by ON CONFLICT and seen by the second look.
    """
    rows = [dict(zip(keys, row, strict=True)) for row in zip(*keys.values(), strict=True)]
    if not rows:
        return []
    same = " AND ".join(f'known."{name}" = given."{name}"' for name in keys)
    select = f"""SELECT given.place, known.id FROM {given_rows(model, [*keys, "place"])}
        JOIN {model._meta.db_table} known ON {same}"""  # noqa: S608 — only names of columns are put into the text  # nosec B608
    body = orjson.dumps([row | {"place": index} for index, row in enumerate(rows)]).decode()
    ids: dict[int, int] = dict(fetch_tuples(select, [body]))
    if len(ids) < len(rows):
        insert(model, [row | more(index) for index, row in enumerate(rows) if index not in ids])
        ids = dict(fetch_tuples(select, [body]))
    return [ids[index] for index in range(len(rows))]


def metric_ids(names: list[str]) -> dict[str, int]:
    """Return the ids of these distinct names. A new one gets the unit and direction of the registry."""
    ids = ids_of(Metric, {"name": names}, lambda index: metric_info(names[index]).to_row())
    return dict(zip(names, ids, strict=True))


def _environment_ids(environments: Mapping[str, Environment]) -> dict[str, int]:
    """Return the ids of these environments by their fingerprints."""
    fingerprints = sorted(environments)

    def row_of(key: int) -> dict[str, Any]:
        environment = environments[fingerprints[key]]
        return {
            "class_key": class_key(environment),
            "torch": environment.torch[:100],
            "torch_git": environment.torch_git[:64],
            "gpu": environment.gpu[:200],
            "facts": asdict(environment),
        }

    ids = ids_of(EnvironmentRow, {"fingerprint": fingerprints}, row_of)
    return dict(zip(fingerprints, ids, strict=True))


def class_key(environment: Environment) -> str:
    """Return the environment class: what a baseline may be compared with. torch and triton are the subject
    and never part of it; minor versions of driver and CUDA are noise."""
    parts = [
        environment.gpu,
        environment.driver.partition(".")[0],
        environment.cuda.partition(".")[0],
        environment.cpu,
    ]
    parts += [f"{name}={environment.packages.get(name, '')}" for name in CLASS_PACKAGES]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


class Meanings:
    """The metrics of one upload, and what its records say of them."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._new: set[str] = set()
        self._converted: dict[str, set[str]] = {}  # units by metric

    def convert(self, items: Sequence[ParsedMeasurement]) -> list[tuple[ParsedMeasurement, WrongRecord]]:
        """Write measurements in the units of their metrics. Return those in a unit of something else, or with
        the opposite direction, each with what is wrong."""
        self._learn(dict.fromkeys(map(_KEY, items)))
        wrong = []
        for item in items:
            try:
                self._check(item)
            except WrongRecord as error:  # noqa: PERF203 - of few
                wrong.append((item, error))
        return wrong

    def _learn(self, keys: Iterable[tuple[str, str, str]]) -> None:
        """Read the metrics of these names, units and directions. One without unit or direction gets the first
        that is said; of concurrent uploads the others wait for the first."""
        meanings: dict[str, tuple[str, str]] = {}
        for name, said_unit, said_direction in keys:
            unit, direction = meanings.get(name, ("", ""))
            meanings[name] = unit or said_unit, direction or said_direction
        unread = sorted(meanings.keys() - self._metrics.keys() - METRICS.keys())
        for name in meanings.keys() & METRICS.keys() - self._metrics.keys():
            self._metrics[name] = Metric(**METRICS[name].to_row())
        self._metrics |= Metric.objects.in_bulk(unread, field_name="name")
        if new := [name for name in unread if name not in self._metrics]:
            metric_ids(new)
            self._metrics |= Metric.objects.in_bulk(new, field_name="name")
            self._new.update(new)
        self._complete(meanings)

    def _complete(self, meanings: Mapping[str, tuple[str, str]]) -> None:
        """Give metrics the unit and direction that they lack; what is stored of them can then be judged."""
        lacking = [
            name
            for name, (unit, direction) in meanings.items()
            if (unit and _lacks_unit(self._metrics[name]))
            or (direction and _lacks_direction(self._metrics[name]))
        ]
        if not lacking:
            return
        rows = Metric.objects.select_for_update(no_key=True).filter(name__in=lacking).order_by("name")
        for metric in rows:
            unit, direction = meanings[metric.name]
            if _lacks_unit(metric):
                metric.unit = unit
            if _lacks_direction(metric) and direction:
                metric.direction = direction
                Series.objects.filter(metric=metric).update(touched_at=_FIRST)
                SeriesState.objects.filter(series__metric=metric).update(seen_run=0)
            metric.save(update_fields=["unit", "direction"])
            self._metrics[metric.name] = metric

    def _check(self, item: ParsedMeasurement) -> None:
        metric = self._metrics[item.metric]
        if {item.direction, metric.direction} == {"up", "down"}:
            detail = f"{item.metric} is better {metric.direction}, not {item.direction}"
            raise WrongRecord("/metric/extra_info/direction", detail)
        if item.unit in {"", metric.unit}:
            return
        try:
            item.samples = [convert(sample, item.unit, metric.unit) for sample in item.samples]
            if item.target is not None:
                item.target = convert(item.target, item.unit, metric.unit)
        except ValueError as error:
            detail = f"{item.metric} is in {metric.unit or 'no unit'}: {error}"
            raise WrongRecord("/metric/extra_info/unit", detail) from error
        check_values(item.suite, item.metric, item.samples)
        self._converted.setdefault(item.metric, set()).add(item.unit)
        item.unit = metric.unit

    def to_json(self) -> list[dict[str, Any]]:
        """Return what was understood, for the receipt: the metrics that the registry does not know, and those
        whose values were converted."""
        shown = sorted(name for name in self._metrics if name in self._converted or not is_known(name))
        return [
            {
                "name": name,
                "unit": self._metrics[name].unit,
                "direction": self._metrics[name].direction,
                "new": name in self._new,
                "converted_from": sorted(self._converted.get(name, ())),
            }
            for name in shown[:_MOST_LISTED]
        ]

    def warnings(self) -> list[str]:
        """Return a warning that names the metrics of which nothing says the direction."""
        names = sorted(name for name, metric in self._metrics.items() if _lacks_direction(metric))
        if not names:
            return []
        rest = len(names) - _MOST_WARNED_OF
        listed = ", ".join(names[:_MOST_WARNED_OF]) + (f" and {rest} more" if rest > 0 else "")
        words = "it is never called better or worse until a record or an operator on /rules/ says"
        return [f"nothing says which direction is better of {listed}: {words}"]


def _lacks_unit(metric: Metric) -> bool:
    return not metric.unit and not says_unit(metric.name)


def _lacks_direction(metric: Metric) -> bool:
    return metric.direction == "none" and not metric.told and not is_known(metric.name)
