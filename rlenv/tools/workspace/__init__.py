"""Machines: what an episode's commands run on, and where its tests are run afterwards."""
