"""A page to try shapes on: the numbers of `inspect`, `design` and `plan` for sizes set by sliders."""
