"""Training: the loop, a step and its objective, checkpoints, validation, and what is measured on the way."""
