"""Evaluation of finished models on texts and tasks."""
