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
    """Return a question as a tool, which also takes the first row to show."""

    @functools.wraps(question)
    def tool(*, offset: int = 0, **arguments: Any) -> str:
        try:
            answer = question(**arguments).to_json(offset)
        except Exception as error:
            raise RuntimeError(str(error)[:_MOST_ERROR]) from error
        return json.dumps(answer, ensure_ascii=False)

    asked = inspect.signature(question, eval_str=True)
    offset = inspect.Parameter("offset", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=int)
    tool.__signature__ = asked.replace(parameters=[*asked.parameters.values(), offset])  # type: ignore[attr-defined]
    return tool
