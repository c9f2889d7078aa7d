"""What happens inside two models: how wide the hidden states are used, and where attention goes."""

from pathlib import Path

import widthwise

SHAPES = {"uniform": "{kind: uniform}", "x": "{kind: x, bottleneck_layer: 0.5, bottleneck_width: 0.5}"}

runs = []
for name, shape in SHAPES.items():
    recipe = widthwise.load_recipe("smoke", [f"model.shape={shape}"])
    runs.append(Path("runs") / f"analysed-{name}")
    widthwise.train(recipe, runs[-1])

analysis = widthwise.analyse(runs, n_tokens=2048)
for model in analysis.models:
    print(f"\n{model.name}: layer, width of the stream, its normalised entropy, attention to the first token")
    for state, sink in zip(model.stream[1:], model.sinks):
        print(f"{state.depth:3} {state.width:4} {state.entropy:6.3f} {sink.first_token_share:6.3f}")
widthwise.write_analysis(analysis, "runs/analysis")
print("page:", widthwise.write_report("runs/analysis")[0])
