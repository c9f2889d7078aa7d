"""Function-preserving growth: a larger model that computes the same function. Source: arXiv:2308.06103.

The config of a feed-forward or residual declares what it keeps and which sizes may grow; the algebra is here. Reading
order, which is the order in which a growth happens:

1. `choices`: the options, and the requested config for requests by size (`--d-model 96`).
2. The origin of entries: `correspondence` (layers; one axis; heads), `stream` (coordinates of the residual
   stream).
3. `target`: the grown config: the requested sizes with the constants of the old model.
4. `tensor_plan`: the making of one tensor, with new entries; `rules`: its plan, from the names of its axes; `added`:
   the plan of a parameter that the old model lacks. `plan` puts them together, weights and optimizer state;
   `plan_growth` is the entry.
5. `describe`: the growth as text. `certificate`: old and grown model compared, and the gain of new weights that are 0.
6. `pad` and `bake`: heads of one size, filled with zeros; the constants of a grown model back in their usual form.
"""
