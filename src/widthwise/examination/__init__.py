"""Finished runs, asked: how well they predict texts and answer tasks, and what they do inside."""
