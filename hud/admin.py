"""Django's admin pages for schedules, and for people and their roles."""

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import UserChangeForm
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest

from hud.accounts.audit import note
from hud.accounts.roles import Role, role_of_user, scopes_of_user, set_role
from hud.models import Schedule
from hud.runs import schedules


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]  # generic for the type checker only, as below
    class Meta:
        model = Schedule
        fields = (*schedules.SETTINGS.split(), "stream")

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]  # Django's own hook, which the stubs leave out
        if not self.errors:
            try:
                schedules.check(self.instance)
            except forms.ValidationError as error:
                self.add_error(None, error)


@admin.register(Schedule)
class ScheduleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = ScheduleForm
    list_display = ("name", "cron", "time_zone", "preset", "suite", "everywhere", "enabled")

    def save_model(self, request: HttpRequest, obj: Schedule, _form: Any, _change: bool) -> None:
        schedules.save(obj, who=request.user.get_username())

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        schedules.delete(schedule=obj, who=request.user.get_username())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for schedule in queryset:
            self.delete_model(request, schedule)


class UserForm(UserChangeForm):  # type: ignore[type-arg]
    """A person with one role, in place of Django's groups and flags, which follow from it."""

    role = forms.ChoiceField(choices=[(role.value, role.value) for role in Role])

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.initial["role"] = role_of_user(self.instance).value


admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class PeopleAdmin(UserAdmin):  # type: ignore[type-arg]
    form = UserForm
    fieldsets = (
        (None, {"fields": ("username", "password", "email", "role", "is_active")}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )
    readonly_fields = ("last_login", "date_joined")
    list_display = ("username", "email", "role", "is_active", "last_login")
    list_filter = ("groups", "is_active")

    @admin.display
    def role(self, user: User) -> str:
        return role_of_user(user).value

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return "admin" in scopes_of_user(request.user)

    has_add_permission = has_delete_permission = has_change_permission

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        role = Role(form.cleaned_data.get("role", Role.VIEWER))
        set_role(user=obj, role=role, who=request.user.get_username())

    def log_addition(self, request: HttpRequest, obj: User, message: Any) -> Any:
        note(who=request.user.get_username(), action="user.create", subject=obj.username)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: User, message: Any) -> Any:
        who, detail = request.user.get_username(), {"change": message}
        note(who=who, action="user.change", subject=obj.username, detail=detail)
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[User]) -> Any:
        for user in queryset:
            note(who=request.user.get_username(), action="user.delete", subject=user.username)
        return super().log_deletions(request, queryset)
