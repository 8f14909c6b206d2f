"""The store. Words are those of CONTRIBUTING; real columns and constraints carry identity.

A value that is missing is NULL with a status, never 0; the database itself refuses NaN and infinities.
"""

from hud.models.compilations import BinaryList, Compilation, Kernel, KernelBinary, KernelCode, kernels_of
from hud.models.hosts import Accelerator, Heartbeat, Host
from hud.models.keys import ApiKey, Audit, DailyUse, SignOn
from hud.models.measurements import (
    FIRST_RUN_ONLY,
    NEVER_RAN,
    STATUS_CODES,
    STATUS_NAMES,
    DetailedMeasurement,
    Measurement,
    UnjudgedRun,
    words_are_reason,
)
from hud.models.notifications import Delivery, Notice, OverdueSuite, Webhook, WebhookFormat
from hud.models.points import (
    VERDICT_CODES,
    VERDICTS,
    Expectation,
    KnownFailure,
    Point,
    PointFields,
    SidePoint,
)
from hud.models.regressions import (
    Backlog,
    Bisect,
    BisectStep,
    Cause,
    Regression,
    RegressionEvent,
    SeriesState,
)
from hud.models.runs import ACTIVE, TERMINAL, Artifact, Run, RunRequest, State, Task
from hud.models.schedules import Schedule, ScheduleTrigger
from hud.models.series import (
    Alias,
    Aliases,
    Annotation,
    Environment,
    Experiment,
    Metric,
    Series,
    Target,
    Threshold,
)
from hud.models.streams import ADHOC, IMPORT, NIGHTLY, OPERATORS_OWN, SAMPLES, Stream
from hud.models.uploads import IdempotencyKey, Import, Upload
