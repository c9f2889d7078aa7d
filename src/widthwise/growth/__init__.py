"""Function-preserving growth: a larger model that computes the same function. Source: arXiv:2308.06103.

The config of a feed-forward or residual declares what it keeps and which sizes may grow; the algebra is here. Reading
order, which is the order in which a growth happens:

1. `choices`: what may be asked for. `resized`: the requested config, for requests by size (`--d-model 96`).
2. Where entries come from, one index per axis: `correspondence` (layers and blocks), `axis_maps` (one axis; heads),
   `stream` (coordinates of the residual stream).
3. `target`: the grown config: the requested sizes with the constants of the old model.
4. `tensor_plan`: how one tensor is made, and what fills new entries; `rules`: its plan, from the names of its axes;
   `added`: the plan of a parameter that the old model lacks. `plan` puts them together; `plan_growth` is the entry.
5. `describe`: the growth in words. `certificate`: old and grown model compared. `optimizer_state`: moments kept.
   `gain`: what new weights that are 0 could gain.
6. `pad` and `bake`: sizes rounded up with zeros; the constants of a grown model brought back to their usual form.
"""
