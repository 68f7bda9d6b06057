"""Faces of rlenv environments for other trainers and hosts, a module each; each imports its host.

`tinker`, `skyrl`, `slime` and `areal` train on the ids that were sampled and stand on `rlenv_train.player`; `gem` is
for loops that know text alone.
"""
