"""Many variants of one recipe, trained by workers that share a queue."""
