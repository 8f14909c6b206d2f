"""The HTML of a page, as tests search it."""

from __future__ import annotations

import re
from typing import Any

from django.test import Client


def page_of(client: Client, address: str) -> str:
    """Return a page's HTML as `html_of` does; it must have the status 200."""
    response = client.get(address)
    assert response.status_code == 200, address
    return html_of(response)


def html_of(response: Any) -> str:
    """Return HTML that does not depend on the template's lines: runs of spaces are one, and an element's text
    has none at its edges."""
    text = " ".join(response.content.decode().split())
    return re.sub(r"(<[a-z][^>]*>) | (?=</)", r"\1", text)
