"""A rehearsal of a training run: a preset's whole data flow at its full batch shape, on CPUs, with a tiny model.

`rlenv train --rehearse SPEC --preset gpu` writes the files of a run, starts unmodified veRL under Ray with scripted
tokens of the lengths that the preset allows, trains, saves, starts again from the checkpoint, and checks what came of
it. What is replaced stands in `overlay.yaml` and is printed key by key; everything else is the preset's own.
"""
