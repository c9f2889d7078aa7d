"""Function-preserving growth: a model becomes a larger one that computes the same. Source: arXiv:2308.06103.

Where to read, in the order in which a growth happens:

1. `expansions`: what can be asked for. Each expansion is a change of the config, and nothing else.
2. `maps`: where entries come from, one index per axis (`axis_map`): layers and blocks (`correspondence`), coordinates
   of the residual stream (`stream`), heads (`attention`).
3. `target`: the grown config, which has the sizes asked for and the constants of the old model (`model`).
4. `plan`: what becomes of every tensor (`tensor_plan`), from the names of its axes (`rules`); what is new (`added`) and
   how it is filled (`fresh`). `model_plan` puts them together: `plan_growth` is the way in.
5. `describe`: a growth in words. `certify`: the two models compared. `optimizer_state`: moments, carried along.
6. `pad` and `bake`: two plans that grow nothing: sizes rounded up with zeros, and constants in their usual form.
"""
