"""The place of `hud/server/gunicorn_conf.py` before 2026-11-22, which deployments may still name."""

from hud.server.gunicorn_conf import *  # noqa: F403
