"""Simulated users: who answers a policy that speaks and does not call a tool."""
