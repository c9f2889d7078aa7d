"""Evaluation of finished models: how well they predict texts and answer tasks."""
