"""A retrieval server with the wire of Search-R1, for environments whose search tool asks over HTTP."""

from rlenv.retrieval.base import Found, Retriever

__all__ = ["Found", "Retriever"]
