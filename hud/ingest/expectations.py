"""Store what lists say is expected."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.utils import timezone

from hud.models import STATUS_CODES, Expectation
from hud.points.expectations import dtype_of
from runner.formats.measurement import ParsedMeasurement
from runner.schema.devices import device_family

_SAME = ("suite", "case", "mode", "backend", "dynamic", "metric")
_NAMES = ("suite", "mode", "dtype", "backend", "device", "dynamic")


def store_expectations(
    expected: Sequence[tuple[ParsedMeasurement, float]], upload_id: int, stream_id: int
) -> list[dict[str, Any]]:
    """Store what is expected; return for what, with a count and what was not said."""
    now = timezone.now()
    rows = [
        Expectation(
            upload_id=upload_id,
            stream_id=stream_id,
            **{name: getattr(item, name) for name in _SAME},
            dtype=dtype_of(item.dtype, item.knobs),
            device=device_family(item.device, item.arch),
            value=item.samples[0] if item.samples else item.target,
            margin=margin,
            status=STATUS_CODES[item.status],
            code=item.code or "",
            commit=item.run.commit,
            listed=item.run.order_time or now,
        )
        for item, margin in expected
    ]
    Expectation.objects.bulk_create(rows, batch_size=5000)
    counts = Counter(tuple(getattr(row, name) for name in _NAMES) for row in rows)
    return [
        {
            **dict(zip(_NAMES, subject, strict=True)),
            "count": count,
            "unsaid": [name for name, value in zip(_NAMES, subject, strict=True) if value == ""],
        }
        for subject, count in counts.items()
    ]


def unsaid_warning(subjects: Sequence[dict[str, Any]]) -> list[str]:
    """Return a warning about what the lists do not say, if there is any."""
    unsaid = sorted({name for subject in subjects for name in subject["unsaid"]})
    parameters = "&".join(f"{name}=…" for name in unsaid)
    count = sum(subject["count"] for subject in subjects if subject["unsaid"])
    text = (
        f"nothing says the {', '.join(unsaid)} of {count} expected results: they are shown only beside"
        f" results that do not say it either. Give it with the upload: ?{parameters}"
    )
    return [text] if unsaid else []
