"""Results that a host delivers for its running task, and the source of its kernels.

A host may deliver what its task measures and nothing else (`Binding`). The arch of a result is that of the
accelerator, its host that of the run, its place in the series the run's: whatever the record says.
"""

import hashlib
import re
import uuid
from collections.abc import Mapping
from datetime import timedelta

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import F, Subquery, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from hud.ingest.compilations import KEY, signed
from hud.ingest.compressed import inflate
from hud.ingest.parse import RecordParser
from hud.ingest.receipt import Receipt
from hud.ingest.receive import Content
from hud.ingest.runs import Runs, keep_references
from hud.ingest.series import rename_by
from hud.ingest.store import store
from hud.models import Aliases, Compilation, Environment, Host, KernelBinary, KernelCode, Run, Task
from hud.runs.matching import elsewhere
from hud.runs.requests import DEFAULT_INTERPRETER
from hud.runs.tasks import lease_end, leased_task
from runner.formats import json_text, reasons
from runner.formats.errors import BadUpload, Fault, MalformedUpload
from runner.formats.format import Skipped
from runner.formats.measurement import ParsedMeasurement, RunKey
from runner.formats.parameters import Parameters
from runner.schema.protocol import Fingerprint
from runner.schema.suite import IDENTITY, BadRequest, TaskSpec
from runner.suites import suite_of

MAX_BYTES = 16 * 2**20  # of one delivery; a host sends about 4 MiB, escapes may make more of them
CLOCK_TOLERANCE = timedelta(minutes=5)
_MAX_SKEW = timedelta(days=100 * 365)  # any clock that a machine can have
_LIST = re.compile(rb"^[ \t\r]*\[", re.MULTILINE)
KERNEL_CODE = "kernel_code"  # of the artifact: a JSON object of texts by binary, as gzip
_MAX_CODE_BYTES = 8 * 2**20  # of one artifact's JSON
_MAX_CODE = 64 * 1024
_MAX_NOTE = 300
_GIVEN = Parameters(format="v3", source="runner", partial="1")


class Binding:
    """The rules that results of a claimed task must meet.

    Their suite, case, parameters, options, mode, dtype, backend, device and dynamic shapes are those of an
    experiment of the task, as its suite says (`Suite.problem_of`). Their time is within the lease: not before
    the claim and not after now, each on the HUD's clock or on the host's (by the skew of its latest
    heartbeat), whichever is wider, and 5 minutes more. There is no limit to how late a result is delivered
    while the lease lasts. A result without a time has none to check. Torch and Triton are those that the
    run's interpreter had at the run's first claim.
    """

    def __init__(self, task: Task) -> None:
        """Raise BadUpload for a task that this HUD no longer knows."""
        try:
            self.task = TaskSpec.from_json(task.spec)
        except BadRequest as error:
            raise BadUpload(f"the task is none that this hud knows: {error}") from error
        assert task.accelerator
        assert task.started
        self.pair = task.repeat  # the number of its process
        self.arch, self.device = task.accelerator.arch, task.accelerator.device
        self.suite = suite_of(self.task.suite)
        self.experiments = self.suite.expected(self.task, {})
        names = [task.run.interpreter or DEFAULT_INTERPRETER]
        names = [task.run.base_interpreter, *names] if task.run.is_ab else names
        begun = task.run.request.fingerprints
        self.fingerprints = {  # with which the run began, by side
            side: Fingerprint.from_json(begun[name]) for side, name in enumerate(names) if name in begun
        }
        limit_s = _MAX_SKEW.total_seconds()
        skew = timedelta(seconds=max(-limit_s, min(task.accelerator.host.clock_skew_s or 0.0, limit_s)))
        since, until = task.started, timezone.now()
        if until < since:  # our clock went back while the task ran
            longest = timedelta(seconds=self.task.timeout_s)
            since, until = until - longest, since + longest
        self.earliest = since + min(skew, timedelta()) - CLOCK_TOLERANCE
        self.latest = until + max(skew, timedelta()) + CLOCK_TOLERANCE

    def problem_of(self, item: ParsedMeasurement) -> str:
        """Return why a result is none of the task, or ''."""
        identity = {name: getattr(item, name) for name in IDENTITY}
        if item.draw is not None and item.draw // 2 != self.pair:
            return f"its choices are those of draw {item.draw}"
        if problem := self.suite.problem_of(identity, self.task, self.experiments):
            return problem
        now, begun = item.environment, self.fingerprints.get(item.side)
        if begun and now.torch and (now.torch, now.torch_git, now.triton) != begun.subject:
            other = Fingerprint(now.torch, now.torch_git, now.triton)
            return f"it is of {other}, and the run began with {begun}"
        time = item.run.order_time
        if time and not self.earliest <= time <= self.latest:
            return f"its time is {time.isoformat()}, outside of the lease"
        return ""


def take_results(*, uid: uuid.UUID, token: uuid.UUID, host: Host, body: bytes) -> Receipt:
    """Store what the task measured, under its lease. Results of anything else are skipped, and counted for
    the host. Raise LeaseBroken, Problem, BadUpload."""
    with transaction.atomic():
        keep_references()
        task = leased_task(uid=uid, token=token, host=host, lock=True)
        run = Run.objects.get(pk=task.run_id)
        receipt, refused = _store(body, run, task)
        if refused:
            Host.objects.filter(pk=host.pk).update(
                refused_results=F("refused_results") + len(refused),
                refused_reason=f"run {run.pk}: {refused[0].reason}"[:300],
            )
        # a run takes its measurements' torch commit; in an A/B comparison the candidate's
        measured = Environment.objects.filter(measurement__run_id=run.pk, measurement__side=int(run.is_ab))
        environments = measured.order_by("pk")
        commit = Coalesce(Subquery(environments.values("torch_git")[:1]), Value(""))
        Run.objects.filter(pk=run.pk, commit="").update(commit=commit)
        Task.objects.filter(pk=task.pk).update(lease_until=lease_end())
    return receipt


def _store(body: bytes, run: Run, task: Task) -> tuple[Receipt, list[Skipped]]:
    """Store the task's results; return the receipt, and what is none of the task. Records that cannot be read
    are skipped. A later attempt of a task replaces what an earlier one delivered. In an A/B run each record
    says its side."""
    if body.count(b"\n") > settings.HUD_MAX_RECORDS or _LIST.search(body):  # before much is made of them
        raise BadUpload(f"a delivery is at most {settings.HUD_MAX_RECORDS} lines with a record each")
    binding, other_card = Binding(task), elsewhere(task)
    own = RunKey("runner", None, "", "", "", "", order_time=None, order_time_source="run")
    receipt, refused, aliases = Receipt(run_ids=[run.pk]), [], Aliases.read()
    parser = RecordParser(_GIVEN, any_time=True, receipt=receipt)
    runs = Runs(_GIVEN, by_key={own: run}, grown={run.pk})
    for measurements in Content.of(body, _GIVEN).pieces(parser, settings.HUD_MAX_RECORDS):
        items = []
        for item in measurements:
            item.side = item.side if run.is_ab else 0
            if problem := binding.problem_of(item):
                refused.append(Skipped(item.pointer, f"{reasons.OTHER_TASK}: {problem}", item.line))
                continue
            # another device, such as the CPU of a GPU's host, has no arch
            item.arch = binding.arch if item.device == binding.device else ""
            item.run = own
            if other_card and item.samples:
                item.message = "; ".join(filter(None, (item.message, other_card)))[:_MAX_NOTE]
            rename_by(aliases, item)
            item.side, item.draw = (item.side, item.draw) if run.is_ab else (0, None)
            item.repeat = task.repeat if item.draw is None else item.repeat
            if item.compilation is not None:  # each pair compiles both sides anew
                item.compilation = item.repeat if run.is_ab else task.spec.get("compilation", 0)
            items.append(item)
        store(items, receipt, runs, replace=True)
    marked = [item for item in receipt.skipped if item["reason"] == reasons.UNEXPECTED]
    for entry in refused:
        receipt.skip(entry)
    return receipt, [*refused, *(Skipped(item["pointer"], item["reason"]) for item in marked)]


def take_kernel_code(*, uid: uuid.UUID, token: uuid.UUID, host: Host, data: bytes) -> int:
    """Keep the source of kernels of compilations that the task has delivered; return of how many. The source
    of a binary that this host has delivered stays. Raise BadUpload, LeaseBroken, Problem."""
    texts = _code(data)
    numbers = {signed(binary): binary for binary in texts}
    with transaction.atomic():
        task = leased_task(uid=uid, token=token, host=host, lock=True)
        delivered = Compilation.objects.filter(
            run_id=task.run_id, repeat=task.repeat, binary_list__binaries__overlap=list(numbers)
        )
        lists = delivered.values_list("binary_list__binaries", "binary_places")
        own = {listed[index] for listed, places in lists for index in places} & numbers.keys()
        _keep_code({numbers[number]: texts[numbers[number]] for number in own}, host.pk)
    return len(own)


def take_kernel_code_of_file(data: bytes) -> int:
    """Keep the source of kernels in a file of the runner (`kernel_code` among its artifacts); return of how
    many. Raise BadUpload."""
    texts = _code(data)
    with transaction.atomic():
        _keep_code(texts, 0)
    return len(texts)


def _code(data: bytes) -> dict[str, str]:
    """Return the texts by binary in an artifact. Raise BadUpload."""
    try:
        texts = msgspec.json.decode(inflate(data, _MAX_CODE_BYTES), type=dict[str, str])
    except json_text.ERRORS as error:
        raise MalformedUpload("this is no code of kernels", [Fault("", str(error))]) from error
    return {binary: text for binary, text in texts.items() if KEY.fullmatch(binary)}


def _keep_code(texts: Mapping[str, str], host_id: int) -> None:
    """Store these texts by binary for a host's runs, each content once."""
    codes = {}
    for binary in sorted(texts):
        text = texts[binary].replace("\0", "")[:_MAX_CODE]
        digest = uuid.UUID(bytes=hashlib.blake2b(text.encode(), digest_size=16).digest())
        codes[binary] = KernelCode(digest=digest, text=text, delivered=timezone.now())
    distinct = {code.digest: code for code in codes.values()}
    KernelCode.objects.bulk_create(
        [distinct[digest] for digest in sorted(distinct)],
        update_conflicts=True,
        unique_fields=["digest"],
        update_fields=["delivered"],
    )
    KernelBinary.objects.bulk_create(
        [
            KernelBinary(binary=binary, host_id=host_id, code=distinct[code.digest])
            for binary, code in codes.items()
        ],
        ignore_conflicts=True,
    )
