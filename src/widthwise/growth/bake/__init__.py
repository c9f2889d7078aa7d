"""The constants of a grown model in the form that its sizes would give, with weights that make up for it."""
