"""A local page with sliders for a shape, which shows the numbers of `inspect`, `design` and `plan`."""
