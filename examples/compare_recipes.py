"""Two recipes over two seeds on the same data: the comparison as records, and as a page."""

from pathlib import Path

import widthwise

SHAPES = {"uniform": "{kind: uniform}", "x": "{kind: x, bottleneck_layer: 0.5, bottleneck_width: 0.5}"}

folder = Path("recipes")
folder.mkdir(exist_ok=True)
for name, shape in SHAPES.items():
    (folder / f"{name}.yaml").write_text(f"extends: smoke\nmodel: {{shape: {shape}}}\n")

# Layers this small cannot be rounded to the same size, so the feed-forwards are made to fit.
plan = widthwise.read_plan([folder / "uniform.yaml", folder / "x.yaml"], seeds=[1, 2], adjust="ffn")
for point in plan.workload()["points"]:
    print(f"planned: {point['name']}, {point['tokens']:,} tokens")
comparison = widthwise.run_experiment(plan, "runs/comparison")
for variant in comparison.variants:
    print(f"{variant.name}: held-out loss {variant.val_loss.mean:.3f}, {variant.cost.params['total']:,} parameters")
print("page:", widthwise.write_report("runs/comparison")[0])
