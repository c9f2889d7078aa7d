"""A shape for a budget: solved, printed layer by layer, and compared with the uniform model of the same size."""

import widthwise

request = widthwise.ShapeRequest(kind="x", turn_layer=0.75, turn_width=0.3, budget="20M")
text, found = widthwise.design_recipe("small", request, ["model.n_layers=12"])

print("layer  d_model  heads  parameters")
for layer in found["layers"]:
    print(f"{layer['layer']:5}  {layer['d_model']:7}  {layer['n_heads']:5}  {layer['params']:10,}")

uniform = found["baseline"]
for title, path in {
    "parameters": ("params", "total"),
    "training FLOPs per token": ("flops_per_token", "training"),
    "KV bytes per token": ("kv_bytes_per_token",),
}.items():
    cost, other = found, uniform
    for key in path:
        cost, other = cost[key], other[key]
    print(f"{title}: {cost:,.0f}, {cost / other:.3f} of the uniform model's")
print(f"budget missed by {found['budget']['miss']:+.2%}")

print("\nas a recipe:\n")
print(text)
