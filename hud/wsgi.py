"""The web application, for gunicorn."""

import os

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

from hud.server.processes import read_settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hud.settings")
read_settings()
application = get_wsgi_application()
# Import all pages and the API before gunicorn forks: else the first request to each worker does so, in 0.7 s
get_resolver().url_patterns  # noqa: B018
