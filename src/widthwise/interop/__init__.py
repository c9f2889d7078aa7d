"""Models in the formats of others: Hugging Face folders in and out."""
