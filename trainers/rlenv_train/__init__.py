"""The parts of training on rlenv's environments that no trainer is needed for: what an adapter for any trainer uses.

Samples, groups of samples, the failure policy, the episodes that a run keeps, its attempts, its specs, its processes
and its progress. Nothing here imports veRL, Ray, torch or transformers.
"""
