"""Training: recipe, schedule, optimizer, step, checkpoint, trainer."""
