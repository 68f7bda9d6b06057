"""The hostile policy, model, server and tool, and the check that an environment stands up to them.

check_hostile(spec)      attacks an environment with a hostile policy and states what gave way
HostilePolicy            the policy: actions that hang, fill, void, mask and forge, made for the spec's tools
HostileEndpoint          a model server for `endpoints:`, in the OpenAI wire format
HostileMcpServer         an MCP server for `tools: kind: mcp`, over stdio or HTTP
hostile_tool             a Python tool for `tools: kind: python`
hostile_actions          texts for any parser, without an environment
"""

from __future__ import annotations

from rlenv.testing.hostile_check import HostileReport, attack, check_hostile
from rlenv.testing.hostile_endpoint import HostileEndpoint
from rlenv.testing.hostile_mcp import HostileMcpServer
from rlenv.testing.hostile_policy import HostileAction, HostilePolicy
from rlenv.testing.hostile_text import hostile_actions
from rlenv.testing.hostile_tool import hostile_tool

__all__ = [
    "HostileAction",
    "HostileEndpoint",
    "HostileMcpServer",
    "HostilePolicy",
    "HostileReport",
    "attack",
    "check_hostile",
    "hostile_actions",
    "hostile_tool",
]
