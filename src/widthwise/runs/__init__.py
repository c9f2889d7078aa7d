"""Verbs on a run directory: train, resume, grow, bake, pad, import, export, evaluate, analyse."""
