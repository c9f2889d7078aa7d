"""Function-preserving growth: a model becomes a larger one that computes the same. Source: arXiv:2308.06103.

The config of a feed-forward or residual says what it keeps and which sizes grow; the algebra is here. Where to read, in
the order in which a growth happens:

1. `resized`: a config with some sizes changed, which is all that a growth is asked for.
2. `maps`: where entries come from, one index per axis (`axis_map`): layers and blocks (`correspondence`), coordinates
   of the residual stream (`stream`), heads (`attention`).
3. `target`: the grown config, which has the sizes asked for and the constants of the old model (`model`).
4. `plan`: what becomes of every tensor (`tensor_plan`), from the names of its axes (`rules`; `slots` for the tables of
   hyper-connections); what is new (`added`) and how it is filled (`fresh`). `model_plan` puts them together:
   `plan_growth` is the way in.
5. `describe`: a growth in words. `certify`: the two models compared. `optimizer_state`: moments, carried along.
6. `pad` and `bake`: sizes rounded up with zeros, and the constants of a grown model in their usual form.
"""
