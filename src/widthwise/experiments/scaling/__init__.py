"""Laws of the loss over compute, parameters or width, with intervals, and what one group saves over another."""
