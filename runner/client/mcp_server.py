"""The MCP server: the questions of `answers` as tools for agents, over stdio, with the role of a key."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import MCPServer

from .answers import Answer, Questions
from .hud import Hud

_MOST_ERROR = 1000


def server(hud: Hud) -> MCPServer:
    """Return the server; its `run()` talks over stdio."""
    made = MCPServer("compiler-hud", instructions=f"Performance of PyTorch's compiler, from {hud.url}")
    for question in Questions.all:
        name, about = question.__name__, " ".join((question.__doc__ or "").split())
        tool = _tool(getattr(Questions(hud), name))
        made.add_tool(tool, name, description=about, structured_output=False)
    return made


def _tool(question: Callable[..., Answer]) -> Callable[..., str]:
    @functools.wraps(question)
    def tool(**arguments: Any) -> str:
        try:
            answer = question(**arguments).to_json()
        except Exception as error:
            raise RuntimeError(str(error)[:_MOST_ERROR]) from error
        return json.dumps(answer, ensure_ascii=False)

    tool.__signature__ = inspect.signature(question, eval_str=True)  # type: ignore[attr-defined]
    return tool
