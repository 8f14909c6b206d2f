"""The store. Words are those of CONTRIBUTING; real columns and constraints carry identity.

A value that is missing is NULL with a status, never 0; the database itself refuses NaN and infinities.
"""

from hud.models.archive import ArchivedMonth
from hud.models.commits import Commit
from hud.models.compilations import (
    BinaryList,
    Compilation,
    Kernel,
    KernelBinary,
    KernelCode,
    LineList,
    kernels_of,
)
from hud.models.hosts import Accelerator, Heartbeat, Host
from hud.models.keys import ApiKey, Audit, Correction, IdempotencyKey, Import, LimitUse, SignOn, Upload
from hud.models.points import (
    FIRST_RUN_ONLY,
    STATUS_CODES,
    STATUS_NAMES,
    VERDICT_CODES,
    VERDICTS,
    DetailedMeasurement,
    Expectation,
    KeptValue,
    KnownFailure,
    Measurement,
    Point,
    PointFields,
    RunSubject,
    RunSummary,
    SidePoint,
    UnjudgedRun,
    words_are_reason,
)
from hud.models.regressions import (
    Backlog,
    Bisect,
    BisectStep,
    Cause,
    Channel,
    Delivery,
    Follow,
    Notice,
    OverdueSuite,
    Regression,
    RegressionEvent,
    RunEnd,
    SeriesState,
)
from hud.models.runs import (
    ACTIVE,
    TERMINAL,
    Artifact,
    Run,
    RunRequest,
    Schedule,
    ScheduleTrigger,
    State,
    Task,
    Turn,
)
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
from hud.states.fair_share import RUN_CLASSES, RunClass
from runner.schema.records import NEVER_RAN
