"""Training of models in which every token has a width of its own: budgets, nested widths, and what is measured."""
