"""Function-preserving growth: a larger model that computes the same function. Source: arXiv:2308.06103.

The config of a feed-forward or residual declares what it keeps and which sizes may grow; the algebra is here. Reading
order, which is the order in which a growth happens:

1. `choices`: the options. `resizing`: the config that a request by size (`--d-model 96`) describes.
2. The origin of entries: `correspondence` (layers; one axis; heads), `stream` (coordinates of the residual
   stream).
3. `target`: the grown config: the requested sizes with the constants of the old model.
4. `tensor_plan`: makes one grown tensor. `rules`: plans a tensor from the names of its axes. `plan`: the plan of a
   whole model, with the parameters that the old one lacks, its weights and optimizer state; start at `plan_growth`.
5. `describe`: the growth as text. `certificate`: compares old and grown model, and estimates the gain of new weights
   that are 0.
6. `bake`: other forms of the same function: standard constants, and heads of one size.
"""
