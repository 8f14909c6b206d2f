"""Every address on one page."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, register_converter

from hud.api import api, metrics
from hud.views import account, experiments, health, hosts, overview, runs, suites


class _Name:
    """A name out of the data: no slash, no control character (PostgreSQL refuses NUL)."""

    regex = r"[^/\x00-\x1f\x7f]{1,60}?"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


class _Twin:
    """The formats in which every page of tables and charts can be had."""

    regex = "json|csv"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(_Name, "name")
register_converter(_Twin, "twin")

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("overview.<twin:twin>", overview.overview, name="overview"),
    path(".<twin:twin>", overview.overview),
    path("suites/", suites.suite_list, name="suites"),
    path("suites.<twin:twin>", suites.suite_list, name="suites"),
    path("suites/<name:name>.<twin:twin>", suites.suite, name="suite"),
    path("suites/<name:name>/", suites.suite, name="suite"),
    path("experiments/<int:pk>/", experiments.experiment, name="experiment"),
    path("experiments/<int:pk>.<twin:twin>", experiments.experiment, name="experiment"),
    path("experiments/<int:pk>/rerun", experiments.rerun, name="rerun"),
    path("runs/", runs.run_list, name="runs"),
    path("runs.<twin:twin>", runs.run_list, name="runs"),
    path("runs/<int:pk>/", runs.run, name="run"),
    path("runs/<int:pk>.<twin:twin>", runs.run, name="run"),
    path("runs/<int:pk>/live", runs.live, name="run_live"),
    path("runs/<int:pk>/log", runs.log, name="run_log"),
    path("runs/<int:pk>/artifacts/<int:artifact_pk>", runs.artifact, name="run_artifact"),
    path("runs/<int:pk>/cancel", runs.cancel, name="run_cancel"),
    path("hosts/", hosts.host_list, name="hosts"),
    path("hosts.<twin:twin>", hosts.host_list, name="hosts"),
    path("hosts/live", hosts.live, name="hosts_live"),
    path("hosts/token", hosts.token, name="host_token"),
    path("hosts/<int:pk>/<str:action>", hosts.act, name="host_act"),
    path("schedules/<int:pk>", hosts.schedule, name="schedule_act"),
    path("schedules/<int:pk>/delete", hosts.delete_schedule, name="schedule_delete"),
    path("keys/", account.key_list, name="keys"),
    path("keys.<twin:twin>", account.key_list, name="keys"),
    path("keys/<int:pk>/revoke", account.revoke, name="key_revoke"),
    path("login/", account.login, name="login"),
    path("logout/", account.logout, name="logout"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("api/v1/", api.urls),
    path("admin/", admin.site.urls),
    path("django-rq/", include("django_rq.urls")),
]

handler400 = "hud.views.errors.bad_request"
handler403 = "hud.views.errors.forbidden"
handler404 = "hud.views.errors.not_found"
handler500 = "hud.views.errors.server_error"
