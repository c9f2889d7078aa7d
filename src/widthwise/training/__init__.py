"""Training: the loop, a step and its objective, checkpoints, validation and metrics."""
