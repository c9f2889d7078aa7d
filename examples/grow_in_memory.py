"""A model that becomes a larger one in the middle of a training loop, and computes exactly the same at that moment."""

import torch

import widthwise

recipe = widthwise.load_recipe("smoke", ["model.shape={kind: uniform}"])
data = widthwise.open_data(recipe.data)
batches = widthwise.Loader(data.train, seq_len=recipe.seq_len, batch_size=16, seed=1)


def trained(model: widthwise.Decoder, n_steps: int) -> widthwise.Decoder:
    optimizer = torch.optim.AdamW(widthwise.parameter_groups(model, lr=0.01))
    for _, batch in zip(range(n_steps), batches):
        model.loss(batch[:, :-1], batch[:, 1:]).objective.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def described(model: widthwise.Decoder) -> str:
    batch = next(batches)
    with torch.no_grad():
        loss = model.loss(batch[:, :-1], batch[:, 1:]).losses.mean()
    return f"{sum(weight.numel() for weight in model.parameters()):,} parameters, loss {loss:.3f}"


small = trained(widthwise.build(recipe), 40)
large = widthwise.grow_model(small, widthwise.NewSizes(d_model=48, n_heads=6, d_ff=192, add_layers=2))
tokens = next(batches)
difference = (large(tokens) - small(tokens)).abs().max()
print("small:", described(small))
print(f"grown: logits differ by {difference:.1e}")
print("large:", described(trained(large, 40)))
