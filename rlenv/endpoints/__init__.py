"""OpenAI-compatible servers: what policies, model tools, agents, simulated users and judges ask.

An `Endpoint` is compiled and holds no connection. A `Client` holds the connections of one event loop; an environment
has one for each endpoint, kept in its scope, so that everything that asks shares its limit.
"""

from rlenv.endpoints.client import REFUSED, Client, Endpoint, compile_endpoint

__all__ = ["REFUSED", "Client", "Endpoint", "compile_endpoint"]
