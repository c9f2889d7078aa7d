"""What becomes of every tensor of a model that grows."""
