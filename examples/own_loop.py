"""Your own training loop, saved as a run that every command of widthwise takes."""

import torch

import widthwise

recipe = widthwise.load_recipe("smoke")
data = widthwise.open_data(recipe.data)
model = widthwise.build(recipe)
optimizer = torch.optim.AdamW(widthwise.parameter_groups(model, lr=0.01), betas=(0.9, 0.95))
batches = widthwise.Loader(data.train, seq_len=recipe.seq_len, batch_size=16, seed=1)
for step, batch in zip(range(1, 61), batches):
    loss = model.loss(batch[:, :-1], batch[:, 1:])
    loss.objective.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(f"step {step}: {loss.losses.mean():.3f} nats per token")

run = widthwise.save_run(model, data.tokenizer, "runs/own_loop", recipe, data=data)
metrics = widthwise.evaluate_run(run).texts["held-out"].metrics
print(f"held out: {metrics['bits_per_byte'].value:.3f} bits per byte")
print(f"`widthwise generate {run} --prompt the` goes on from here")
