"""MCP servers: how they are reached, kept, listed and pinned. Imported only where a spec names one."""
