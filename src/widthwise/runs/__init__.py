"""Verbs on a run directory: train, resume, grow, import, export, evaluate, analyse."""
