"""Bisects: the search itself over made-up answers, and one through requests, rows and the API."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.judging.bisect import work
from hud.judging.bisect.work import Build, in_order
from hud.judging.comparison import MOST_PLANNED
from hud.models import (
    Accelerator,
    Audit,
    Bisect,
    Environment,
    Experiment,
    Point,
    Regression,
    Run,
    Series,
    State,
)
from hud.states.bisect import (
    MOST_ATTEMPTS,
    BisectState,
    StepAnswer,
    Word,
    most_steps,
    next_step,
)
from runner.schema.protocol import OVERLAYS_ALLOWED, overlay_of
from tests.support.factories import (
    create_accelerator,
    create_environment,
    create_experiment,
    create_host,
    create_measurement,
    create_metric,
    create_run,
)
from tests.support.mirrors import create_mirror

Truth = Callable[[int, int, int], Word]  # base, head and attempt


Step = tuple[BisectState, int, int]


def search(versions: int, truth: Truth, levels: Sequence[float] = ()) -> tuple[Step, list[tuple[int, int]]]:
    """Return the end of a bisect and its comparisons in order. `levels` are log values of the versions."""
    answers: dict[tuple[int, int], StepAnswer] = {}
    done: list[tuple[int, int]] = []
    while (found := next_step(versions, list(answers.values())))[0] == BisectState.RUNNING:
        key = found[1:]
        done.append(key)
        attempts = done.count(key)
        size = abs(levels[key[1]] - levels[key[0]]) if levels else 0.0
        answers[key] = StepAnswer(*key, truth(*key, attempts), attempts, size)
        assert len(done) < 100
    return found, done


@pytest.mark.parametrize("versions", [2, 3, 5, 8, 33])
def test_a_planted_step_is_found_with_its_neighbours_last(versions: int) -> None:
    for step in range(1, versions):

        def truth(base: int, head: int, _attempt: int, step: int = step) -> Word:
            return "worse" if base < step <= head else "same"

        found, done = search(versions, truth)
        assert found == (BisectState.FOUND, step - 1, step)
        assert done[0] == (0, versions - 1)
        assert (step - 1, step) in done
        assert len(done) <= most_steps(versions)


def test_the_same_on_both_ends_is_not_searched_for() -> None:
    found, done = search(8, lambda _base, _head, _n: "same")
    assert (found[0], done) == (BisectState.NOT_REPRODUCED, [(0, 7)])


def test_what_is_unclear_is_measured_again_and_from_the_other_end() -> None:
    chance = random.Random(1)
    for step in range(1, 16):

        def often(base: int, head: int, attempt: int, step: int = step) -> Word:
            is_clear = attempt == MOST_ATTEMPTS or chance.random() < 0.5
            return "unclear" if not is_clear else "worse" if base < step <= head else "same"

        assert search(16, often)[0] == (BisectState.FOUND, step - 1, step)

        def one_sided(base: int, head: int, _attempt: int, step: int = step) -> Word:
            is_middle = base == 0 and head not in {1, 15}
            return "unclear" if is_middle else "worse" if base < step <= head else "same"

        assert search(16, one_sided)[0][0] in {BisectState.FOUND, BisectState.CANNOT_TELL}
    found, done = search(8, lambda base, head, _n: "worse" if (base, head) == (0, 7) else "unclear")
    assert found == (BisectState.CANNOT_TELL, 0, 7)
    assert len(done) == 1 + 2 * MOST_ATTEMPTS
    assert search(8, lambda *_: "unclear")[0][0] == BisectState.CANNOT_TELL


def test_a_version_that_does_not_run_is_left_out() -> None:
    def truth(base: int, head: int, _attempt: int) -> Word:
        return "none" if {base, head} & {3, 4} else "worse" if base < 6 <= head else "same"

    assert search(8, truth)[0] == (BisectState.FOUND, 5, 6)
    found, _done = search(4, lambda base, head, _n: "none" if {base, head} & {1, 2} else "worse")
    assert found == (BisectState.CANNOT_TELL, 0, 3)


def test_smaller_changes_than_the_one_searched_for_do_not_lead_astray() -> None:
    for levels, step in (([0, 0.08, 0.6], 2), ([0, 0.1, 0.7, 0.75, 0.8], 2), ([0, 0.3, 0.4, 0.5, 1.2], 4)):
        found, _done = search(len(levels), lambda *_: "worse", levels)
        assert found == (BisectState.FOUND, step - 1, step)


def test_versions_are_ordered_by_the_day_of_their_commit_else_by_number() -> None:
    builds = [Build("b", "2.10.0", "x"), Build("a", "2.9.1", "y"), Build("c", "2.11.0.dev20260101", "z")]
    assert [build.interpreter for build in in_order(builds)] == ["a", "b", "c"]
    dated = [Build("b", "2.10.0", "x", "2026-03-01"), Build("c", "2.11.0a0", "z", "2026-02-01")]
    assert [build.interpreter for build in in_order(dated)] == ["c", "b"]


# with rows

TORCHES = [(f"2.12.0.dev2026010{day}", f"git{day}") for day in range(1, 9)]


@pytest.fixture
def experiment() -> Experiment:
    return create_experiment(suite="micro", case="layer_norm", knobs={"D": 4096}, backend="inductor")


@pytest.fixture
def accelerator() -> Accelerator:
    pythons = {f"n{7 - day}": {"torch": torch, "torch_git": git} for day, (torch, git) in enumerate(TORCHES)}
    host = create_host("h200-a", facts={"pythons": {**pythons, "broken": {"error": "no torch"}}})
    return create_accelerator(host, pythons=list(pythons), labels={"accelerator": "cuda:0"})


@pytest.fixture
def regression(experiment: Experiment) -> Regression:
    metric = create_metric()
    runs = [create_run(host_name="h200-a") for _ in range(2)]
    for run, (torch, git) in zip(runs, (TORCHES[0], TORCHES[-1]), strict=True):
        environment = create_environment(torch=torch, torch_git=git)
        create_measurement(experiment, metric=metric.name, value=2500, run=run, environment=environment)
    return Regression.objects.create(
        series=Series.objects.get(experiment=experiment, metric=metric),
        class_key=create_environment().class_key,
        state="confirmed",
        first_run=runs[1],
        last_good_run=runs[0],
        since=runs[1].order_time,
        opened=timezone.now() - timedelta(hours=1),
    )


def measure(
    bisect: Bisect, value: Callable[[str], float], of_name: Callable[[str], float] | None = None
) -> None:
    """Measure the pairs of the newest step, as its host does: `value` by the torch of a side, or by its
    interpreter's name."""
    step = bisect.steps.select_related("run").order_by("pk").last()
    assert step
    run = step.run
    assert run
    torch_of = {build["interpreter"]: (build["torch"], build["torch_git"]) for build in bisect.builds}
    for side, name in enumerate((run.base_interpreter, run.interpreter)):
        torch, git = torch_of[name]
        for pair in range(run.tasks.count()):
            create_measurement(
                bisect.regression.series.experiment,
                metric=bisect.regression.series.metric.name,
                value=(of_name(name) if of_name else value(torch)) + pair % 3,
                run=run,
                environment=create_environment(torch=torch, torch_git=git),
                repeat=pair,
                side=side,
            )
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED, finished=timezone.now())


def ask(client: Client, regression: Regression, *scopes: str) -> Any:
    secret = create_key(name="k", scopes=["run", "read", *scopes], who="test")[1]
    address = f"/api/v1/regressions/{regression.pk}/bisect"
    return client.post(address, headers={"authorization": f"Bearer {secret}"})


@pytest.mark.django_db
def test_a_bisect_goes_on_step_by_step_until_it_names_a_version(
    client: Client, accelerator: Accelerator, regression: Regression
) -> None:
    answer = ask(client, regression)
    assert answer.status_code == 201, answer.content
    assert ask(client, regression).status_code == 409
    bisect = Bisect.objects.get(pk=answer.json()["id"])
    assert [build["torch"] for build in bisect.builds] == [torch for torch, _git in TORCHES]
    assert work.advance() == 0  # its run has not ended
    for _step in range(10):
        measure(bisect, lambda torch: 2500 if torch < TORCHES[5][0] else 2300)
        work.advance()
        bisect.refresh_from_db()
        if bisect.finished:
            break
    found = client.get(f"/api/v1/bisects/{bisect.pk}").json()
    assert (found["state"], found["good"], found["bad"]) == ("found", 4, 5)
    assert (found["steps"][0]["base"], found["steps"][0]["head"]) == (0, 7)
    assert len(found["steps"]) <= found["usual_steps"] == 5
    assert {len(step["pairs"]) for step in found["steps"]} == {MOST_PLANNED}
    events = regression.events.order_by("pk")
    assert list(events.values_list("event", flat=True)) == ["bisect", "bisected"]
    assert client.get("/regressions/", {"id": regression.pk}).status_code == 200


@pytest.mark.django_db
def test_a_bisect_ends_where_the_ends_are_alike_or_its_run_is_cancelled(
    client: Client, accelerator: Accelerator, regression: Regression
) -> None:
    bisect = work.start(regression=regression, who="olga")
    measure(bisect, lambda _torch: 2500)
    assert work.advance() == 1
    bisect.refresh_from_db()
    assert bisect.state == BisectState.NOT_REPRODUCED
    again = work.start(regression=regression, who="olga")
    work.cancel(bisect=again, who="olga")
    again.refresh_from_db()
    assert again.state == BisectState.CANCELLED
    step = again.steps.get()
    assert step.run
    assert step.run.state == State.CANCELLED
    accelerator.host.drained = True
    accelerator.host.save()
    assert ask(client, regression).status_code == 409


@pytest.mark.django_db
def test_a_busy_host_tells_that_a_large_change_has_not_come_back(
    accelerator: Accelerator, regression: Regression
) -> None:
    chance = random.Random(1)
    for change, state in ((-0.4, BisectState.NOT_REPRODUCED), (-0.05, BisectState.CANNOT_TELL)):
        Regression.objects.filter(pk=regression.pk).update(change=change)
        bisect = work.start(regression=regression, who="olga")
        while not bisect.finished:
            measure(bisect, lambda _torch: 2500 * chance.uniform(0.9, 1.1))
            work.advance()
            bisect.refresh_from_db()
        assert bisect.state == state
        assert bisect.conclusion
        assert set(bisect.steps.values_list("head", flat=True)) == {7}


@pytest.mark.django_db
def test_one_torch_before_and_after_is_not_bisected(accelerator: Accelerator, regression: Regression) -> None:
    regression.last_good_run = regression.first_run
    regression.save()
    assert work.hindrance(regression, [accelerator])


@pytest.mark.django_db
def test_two_tritons_with_one_torch_are_both_compared(
    accelerator: Accelerator, regression: Regression
) -> None:
    same = {"torch": "2.12.0", "torch_git": "git", "variables": {"CXX": "g++"}}
    pythons = {"old": {**same, "triton": "3.5"}, "new": {**same, "triton": "3.6"}}
    accelerator.host.facts = {"pythons": pythons}
    accelerator.host.save()
    accelerator.catalog["pythons"] = ["new", "old"]
    accelerator.save()
    for run, name in ((regression.last_good_run, "old"), (regression.first_run, "new")):
        assert run
        Run.objects.filter(pk=run.pk).update(interpreter=name)
        environment = create_environment(torch="2.12.0", torch_git="git", triton=pythons[name]["triton"])
        Point.objects.filter(run=run).update(environment=environment)
    regression.refresh_from_db()
    bisect = work.start(regression=regression, who="olga")
    told = [(build["interpreter"], build["differs"]) for build in bisect.builds]
    assert told == [("old", "triton 3.5"), ("new", "triton 3.6")]


@pytest.fixture
def line(tmp_path: Path, settings: Any, accelerator: Accelerator, regression: Regression) -> list[str]:
    """Commits from one nightly to the other of a host that allows overlays."""
    changes = [(f"Change {number}", [f"torch/_inductor/{number % 3}.py"]) for number in range(9)]
    shas = create_mirror(tmp_path / "mirror", changes)
    settings.HUD_REPO_MIRRORS = {"o/r": str(tmp_path / "mirror")}
    ends = dict(zip((TORCHES[0][0], TORCHES[-1][0]), (shas[0], shas[-1]), strict=True))
    pythons = {f"n{sha[:4]}": {"torch": torch, "torch_git": sha} for torch, sha in ends.items()}
    accelerator.host.facts = {"pythons": pythons}
    accelerator.host.save()
    accelerator.catalog["pythons"], accelerator.labels = (
        list(pythons),
        {**accelerator.labels, **OVERLAYS_ALLOWED},
    )
    accelerator.save()
    for run in (regression.last_good_run, regression.first_run):
        environment = Environment.objects.get(point__run=run)
        facts = {"torch": environment.torch, "torch_git": ends[environment.torch]}
        Point.objects.filter(run=run).update(environment=create_environment(**facts))
    return shas


def search_commits(bisect: Bisect, shas: Sequence[str], guilty: int) -> Bisect:
    """Measure step by step where commits from the guilty one on are slower."""
    by_torch = {build["interpreter"]: build["torch_git"] for build in bisect.builds}

    def value(name: str) -> float:
        return 2300 if shas.index(overlay_of(name)[1] or by_torch[name]) >= guilty else 2500

    while not bisect.finished:
        measure(bisect, lambda _torch: 0.0, value)
        assert work.advance() == 1
        bisect.refresh_from_db()
    return bisect


@pytest.mark.django_db
@pytest.mark.parametrize("guilty", [1, 5, 8])
def test_a_bisect_goes_on_to_the_commit_by_overlays(
    client: Client, line: list[str], regression: Regression, guilty: int
) -> None:
    answer = ask(client, regression, "code")
    assert answer.status_code == 201, answer.content
    bisect = search_commits(Bisect.objects.get(pk=answer.json()["id"]), line, guilty)
    assert bisect.state == BisectState.FOUND
    assert [overlay_of(build["interpreter"])[1] for build in bisect.builds[1:-1]] == line[1:-1]
    assert (bisect.good, bisect.bad) == (guilty - 1, guilty)
    bad = bisect.builds[guilty]
    assert (overlay_of(bad["interpreter"])[1] or bad["torch_git"]) == line[guilty]
    assert line[guilty][:9] in bisect.conclusion
    assert Audit.objects.filter(action="run.overlay").count() >= 3
    regression.refresh_from_db()
    assert regression.state == "confirmed", "other code than what moved decides nothing"
    assert client.get("/regressions/", {"open": regression.pk}).status_code == 200


@pytest.mark.django_db
def test_commits_are_searched_only_by_who_may_run_code_on_hosts_that_allow_it(
    client: Client, line: list[str], accelerator: Accelerator, regression: Regression
) -> None:
    assert len(ask(client, regression).json()["environments"]) == 2
    Bisect.objects.update(state=BisectState.CANCELLED)
    accelerator.labels = {"accelerator": "cuda:0"}
    accelerator.save()
    assert len(ask(client, regression, "code").json()["environments"]) == 2


@pytest.mark.django_db
def test_a_range_with_other_files_ends_with_two_versions_and_their_names(
    line: list[str], tmp_path: Path, accelerator: Accelerator, regression: Regression, settings: Any
) -> None:
    shas = create_mirror(
        tmp_path / "other", [("a", ["torch/_inductor/a.py"]), ("b", ["aten/b.cpp"]), ("c", ["c"])]
    )
    settings.HUD_REPO_MIRRORS = {"o/r": str(tmp_path / "other")}
    pythons = accelerator.host.facts["pythons"]
    for facts, sha in zip(pythons.values(), (shas[0], shas[2]), strict=True):
        Environment.objects.filter(torch_git=facts["torch_git"]).update(torch_git=sha)
        facts["torch_git"] = sha
    accelerator.host.save()
    bisect = work.start(regression=regression, who="olga", may_run_code=True)
    assert len(bisect.builds) == 2
    search_commits(bisect, (shas[0], shas[2]), 1)
    assert bisect.state == BisectState.FOUND
    assert all(words in bisect.conclusion for words in ("cannot tell", "aten/b.cpp", "changed too"))
