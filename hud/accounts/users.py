"""Create people's logins and give them roles."""

import secrets

from django.contrib.auth.models import Group, User
from django.db import transaction

from hud.accounts.audit import note
from hud.accounts.roles import Role, role_of_user


def create_user(*, name: str, role: Role, who: str, password: str = "") -> tuple[User, str]:
    """Return a new login and its password. Raise ValidationError for a name that is impossible or taken."""
    password = password or secrets.token_urlsafe(12)
    user = User(username=name)
    user.set_password(password)
    user.full_clean()
    with transaction.atomic():
        user.save()
        note(who=who, action="user.create", subject=name)
        set_role(user=user, role=role, who=who)
    return user, password


@transaction.atomic
def set_role(*, user: User, role: Role, who: str) -> None:
    """Make this the only role of a person. An admin is Django's superuser too, nobody else stays one."""
    before = role_of_user(user)
    user.groups.remove(*Group.objects.filter(name__in=list(Role)))
    user.groups.add(Group.objects.get_or_create(name=role.value)[0])
    is_admin = role is Role.ADMIN
    if user.is_superuser != is_admin or (is_admin and not user.is_staff):
        user.is_superuser = user.is_staff = is_admin
        user.save(update_fields=["is_superuser", "is_staff"])
    if role != before:
        note(who=who, action="user.role", subject=user.get_username(), detail={"from": before, "to": role})
