"""Statistics of the activations of a finished model, taken through hooks while it runs unchanged."""
