"""What each arch reaches: its measured ceilings."""

from __future__ import annotations

from dataclasses import dataclass, field

from hud.models import Stream
from hud.points.targets import CEILING_READINGS
from hud.sql import fetch_tuples
from runner.schema.statistics import median
from runner.suites import CEILINGS

_SAME_PEAK = {"float16": "bfloat16"}  # the same units multiply both


@dataclass(frozen=True)
class Ceilings:
    """What an arch reaches: medians of the latest seven readings."""

    copy_gbps: float | None = None
    read_gbps: float | None = None
    matmul_tflops: dict[str, float] = field(default_factory=dict)  # by dtype

    @property
    def words(self) -> str:
        parts = [f"copy {self.copy_gbps:,.0f}" if self.copy_gbps else ""]
        parts.append(f"read {self.read_gbps:,.0f}" if self.read_gbps else "")
        shown = " · ".join(filter(None, parts)) + " GB/s" if any(parts) else ""
        products = [f"{dtype} {value:,.0f} TFLOP/s" for dtype, value in sorted(self.matmul_tflops.items())]
        return " · ".join(filter(None, (shown, *products)))

    def peak_tflops(self, dtype: str) -> float | None:
        return self.matmul_tflops.get(dtype) or self.matmul_tflops.get(_SAME_PEAK.get(dtype, ""))


def ceilings_by_arch(stream: Stream) -> dict[str, Ceilings]:
    """Return what each arch reaches, by the readings of a stream."""
    readings = fetch_tuples(
        """
        SELECT experiment.arch, experiment."case", experiment.dtype, reading.value
        FROM hud_experiment experiment
        JOIN hud_series series ON series.experiment_id = experiment.id AND series.stream_id = %(stream)s
        JOIN hud_metric metric ON metric.id = series.metric_id
            AND metric.name IN ('device_bandwidth_gbps', 'matmul_tflops')
        JOIN LATERAL (
            SELECT value FROM hud_point
            WHERE series_id = series.id AND value IS NOT NULL AND status = 0 AND NOT rerun
            ORDER BY order_time DESC, run_id DESC LIMIT %(readings)s
        ) reading ON true
        WHERE experiment.suite = %(ceilings)s
        """,
        {"stream": stream.pk, "readings": CEILING_READINGS, "ceilings": CEILINGS},
    )
    values: dict[str, dict[tuple[str, str], list[float]]] = {}
    for arch, case, dtype, value in readings:
        values.setdefault(arch, {}).setdefault((case, dtype if case == "matmul" else ""), []).append(value)
    return {arch: _of_arch(found) for arch, found in values.items()}


def _of_arch(readings: dict[tuple[str, str], list[float]]) -> Ceilings:
    middles = {place: median(values) for place, values in readings.items()}
    products = {dtype: value for (case, dtype), value in middles.items() if case == "matmul"}
    return Ceilings(middles.get(("copy", "")), middles.get(("read", "")), products)
