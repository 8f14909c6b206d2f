"""Django's admin pages for schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from hud.models import Schedule
from hud.runs import schedules

if TYPE_CHECKING:
    _Form = forms.ModelForm[Schedule]
    _Admin = admin.ModelAdmin[Schedule]
else:  # generic for the type checker only
    _Form, _Admin = forms.ModelForm, admin.ModelAdmin


class ScheduleForm(_Form):
    class Meta:
        model = Schedule
        fields = (
            "name", "enabled", "cron", "time_zone", "suite", "cases", "modes", "dtypes", "backends",
            "repeats", "device", "environment", "labels", "everywhere",
        )  # fmt: skip

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]  # Django's own hook, which the stubs leave out
        if not self.errors:
            try:
                schedules.check(self.instance)
            except forms.ValidationError as error:
                self.add_error(None, error)


@admin.register(Schedule)
class ScheduleAdmin(_Admin):
    form = ScheduleForm
    list_display = ("name", "cron", "time_zone", "suite", "everywhere", "enabled")

    def save_model(self, request: HttpRequest, obj: Schedule, _form: Any, _change: bool) -> None:
        schedules.save(obj, who=request.user.get_username())

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        schedules.delete(schedule=obj, who=request.user.get_username())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for schedule in queryset:
            self.delete_model(request, schedule)
