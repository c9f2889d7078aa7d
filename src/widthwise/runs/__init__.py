"""What can be done with a run directory: train, resume, grow, bake, pad, import, export, evaluate, analyse."""
