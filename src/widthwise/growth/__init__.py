"""Function-preserving growth: a larger model that computes the same function. Source: arXiv:2308.06103.

The config of a feed-forward or residual declares what it keeps and which sizes may grow; the algebra is here. Reading
order, which is the order in which a growth happens:

1. `resized`: the requested config, for requests by size (`--d-model 96`) instead of by recipe.
2. `maps`: where entries come from, one index per axis (`axis_map`): layers and blocks (`correspondence`), coordinates
   of the residual stream (`stream`), heads (`attention`).
3. `target`: the grown config: the requested sizes with the constants of the old model (`model`).
4. `plan`: how each tensor is made (`tensor_plan`), from the names of its axes (`rules`; `slots` for the tables of
   hyper-connections); which parameters are new (`added`) and how new entries are filled (`fresh`). `model_plan` puts
   them together; its `plan_growth` is the entry point.
5. `describe`: the growth in words. `certify`: old and grown model compared. `optimizer_state`: moments carried over.
6. `pad` and `bake`: sizes rounded up with zeros; the constants of a grown model brought back to their usual form.
"""
