"""Components of a model. Config with cost, and module, are two files side by side."""
