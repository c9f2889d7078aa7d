"""What a finished model knows: how well it predicts texts, and how it answers tasks."""
