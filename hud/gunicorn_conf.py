"""The former path of `hud/server/gunicorn_conf.py`, which deployments may still use."""

from hud.server.gunicorn_conf import *  # noqa: F403
