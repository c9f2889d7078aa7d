"""A page on which a shape is tried out: the numbers of `inspect`, `design` and `plan` while sizes are moved."""
