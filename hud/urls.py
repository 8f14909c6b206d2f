"""The URLs of pages and API."""

from django.contrib import admin
from django.urls import include, path, register_converter
from django.urls.converters import StringConverter
from django.views.generic import RedirectView

from hud.accounts import sign_on
from hud.api import api, host_api
from hud.pages import health
from hud.pages.audit import view as audit
from hud.pages.choices import view as choices
from hud.pages.code import view as code
from hud.pages.compare import view as compare
from hud.pages.compilers import view as compilers
from hud.pages.delete import view as delete
from hud.pages.experiment import view as experiments
from hud.pages.explore import view as explore
from hud.pages.follow import view as follow
from hud.pages.funnel import view as funnel
from hud.pages.glossary import view as glossary
from hud.pages.history import view as history
from hud.pages.hosts import view as hosts
from hud.pages.keys import view as account
from hud.pages.limits import view as limits
from hud.pages.model import view as models
from hud.pages.new_run import view as new_run
from hud.pages.new_upload import view as new_upload
from hud.pages.overview import view as overview
from hud.pages.regressions import view as regressions
from hud.pages.rename import view as rename
from hud.pages.rules import view as rules
from hud.pages.run import view as run
from hud.pages.runs import view as runs
from hud.pages.search import view as search
from hud.pages.stream_list import view as streams
from hud.pages.suite import view as suites
from hud.pages.system import view as system

_CONVERTERS = {
    "key": "[0-9a-f]{16}",  # of a binary
    "name": r"[^/\x00-\x1f\x7f]{1,60}?",  # from the data, without control characters: PostgreSQL refuses NUL
    "case": r"[^\x00-\x1f\x7f]{1,200}?",  # of a suite, which may have slashes
    "format": "json|csv",  # of the data of every page of tables and charts
}
for _name, _regex in _CONVERTERS.items():
    register_converter(type(_name, (StringConverter,), {"regex": _regex}), _name)

_TABLES = {  # pages that are also data, at an address of their name
    "compilers": compilers.compilers,
    "suites": suites.suite_list,
    "code": code.code,
    "compare": compare.compare,
    "explore": explore.explore,
    "search": search.search,
    "limits": limits.limits,
    "choices": choices.choices,
    "runs": runs.run_list,
    "regressions": regressions.regression_list,
    "rules": rules.rule_list,
    "follow": follow.follow_list,
    "funnel": funnel.funnel,
    "history": history.history,
    "hosts": hosts.host_list,
    "streams": streams.stream_list,
    "keys": account.key_list,
    "audit": audit.audit,
    "system": system.system,
}

# Logs and artifacts, which were pages once
_LOG = RedirectView.as_view(pattern_name="api:get_log", query_string=True)
_ARTIFACT = RedirectView.as_view(pattern_name="api:get_artifact")
_FOLLOW = RedirectView.as_view(pattern_name="follow", query_string=True)  # where webhooks were

urlpatterns = [
    *(path(f"{name}/", view, name=name) for name, view in _TABLES.items()),
    *(path(f"{name}.<format:data_format>", view, name=name) for name, view in _TABLES.items()),
    path("", overview.overview, name="overview"),
    path("overview.<format:data_format>", overview.overview, name="overview"),
    path(".<format:data_format>", overview.overview, name="overview_data"),
    path("code/kernel-<key:binary>.py", code.replay, name="replay"),
    path("suites/<name:name>.<format:data_format>", suites.suite, name="suite"),
    path("suites/<name:name>/", suites.suite, name="suite"),
    path("suites/<name:name>/rerun", suites.rerun, name="suite_rerun"),
    path("models/<name:suite>/<case:case>.<format:data_format>", models.model, name="model"),
    path("models/<name:suite>/<case:case>/", models.model, name="model"),
    path("experiments/<int:pk>/", experiments.experiment, name="experiment"),
    path("experiments/<int:pk>.<format:data_format>", experiments.experiment, name="experiment"),
    path("experiments/<int:pk>/rerun", experiments.request_run, name="rerun"),
    path("experiments/<int:pk>/notes", experiments.add_note, name="note_add"),
    path("experiments/<int:pk>/notes/<int:note>/delete", experiments.delete_note, name="note_delete"),
    path("experiments/<int:pk>/known", experiments.mark_failure, name="known_failure_mark"),
    path("experiments/<int:pk>/known/forget", experiments.forget_failure, name="known_failure_forget"),
    path("runs/new/", new_run.new_run, name="run_new"),
    path("uploads/new/", new_upload.new_upload, name="upload_new"),
    path("upload/", RedirectView.as_view(pattern_name="upload_new", query_string=True), name="upload"),
    path("runs/<int:pk>/", run.run, name="run"),
    path("runs/<int:pk>.<format:data_format>", run.run, name="run"),
    path("runs/<int:pk>/live", run.live, name="run_live"),
    path("runs/<int:run_id>/log", _LOG, name="run_log"),
    path("runs/<int:run_id>/artifacts/<int:artifact_id>", _ARTIFACT, name="run_artifact"),
    path("runs/<int:pk>/cancel", run.cancel, name="run_cancel"),
    path("runs/<int:pk>/explain", run.explain, name="run_explain"),
    path("runs/<int:pk>/delete", delete.run, name="run_delete"),
    path("corrections/<int:pk>/", delete.correction, name="correction"),
    path("corrections/<int:pk>/cancel", delete.cancel, name="correction_cancel"),
    path("uploads/<int:pk>/delete", delete.upload, name="upload_delete"),
    path("regressions/act", regressions.act, name="regressions_act"),
    path("regressions/<int:pk>/act", regressions.act, name="regression_act"),
    path("regressions/<int:pk>/bisect", regressions.bisect, name="regression_bisect"),
    path("rules/<str:kind>", rules.save, name="rule_save"),
    path("rules/<str:kind>/<int:pk>", rules.save, name="rule_save"),
    path("rules/<str:kind>/<int:pk>/delete", rules.delete, name="rule_delete"),
    path("glossary/", glossary.glossary, name="glossary"),
    path("follow/create", follow.create, name="follow_create"),
    path("follow/<int:pk>/<str:action>", follow.act, name="follow_act"),
    path("follow/feed/<name:token>.xml", follow.feed, name="follow_feed"),
    path("notifications/", _FOLLOW, name="notifications"),
    path("notifications.<format:data_format>", _FOLLOW, name="notifications"),
    path("rename/", rename.page, name="rename"),
    path("rename/<int:pk>/remove", rename.remove, name="alias_remove"),
    path("runner/", hosts.runner, name="runner"),
    path("runner/<str:name>", hosts.runner, name="runner"),
    path("hosts/live", hosts.live, name="hosts_live"),
    path("hosts/token", hosts.token, name="host_token"),
    path("hosts/<int:pk>/<str:action>", hosts.act, name="host_act"),
    path("schedules/<int:pk>", hosts.schedule, name="schedule_act"),
    path("schedules/<int:pk>/delete", hosts.delete_schedule, name="schedule_delete"),
    path("streams/<name:name>/<str:action>", streams.act, name="stream_act"),
    path("keys/create", account.create, name="key_create"),
    path("keys/<int:pk>/revoke", account.revoke, name="key_revoke"),
    path("login/", account.login, name="login"),
    path("login/sso/", sign_on.to_provider, name="sign_on"),
    path("login/sso/callback/", sign_on.from_provider, name="sign_on_callback"),
    path("logout/", account.logout, name="logout"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("statusz", health.statusz, name="statusz"),
    path("metrics", health.metrics, name="metrics"),
    path("api/v1/", api.urls),
    path("api/v1/", host_api.urls),
    path("admin/", admin.site.urls),
    path("django-rq/", include("django_rq.urls")),
]

handler400 = "hud.pages.errors.bad_request"
handler403 = "hud.pages.errors.forbidden"
handler404 = "hud.pages.errors.not_found"
handler500 = "hud.pages.errors.server_error"
