import pytest
import torch
from model_cases import decoder, random_tokens, variant

pytestmark = pytest.mark.slow


def compiled_layers(model):
    for layer in model.layers:
        layer.compile(dynamic=False)
    return model


@pytest.mark.parametrize(
    "name",
    ["plain", "qk_norm_all_heads", "values_of_other_sizes", "reordered", "slots", "slots_static_padded"],
)
def test_compiled_layers_equal_eager_ones(name):
    torch._dynamo.reset()
    resolved = variant("x", name)
    tokens, targets = random_tokens(2, 9), random_tokens(2, 9, seed=1)
    losses, gradients = [], []
    for prepare in (lambda model: model, compiled_layers):
        model = prepare(decoder(resolved, dtype=torch.float32))
        objective, loss, *_ = model.loss(tokens, targets)
        objective.backward()
        losses.append(loss)
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    for ours, truth in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "slots"])
def test_compiled_layers_have_the_names_of_eager_ones_and_decode_with_a_cache(name):
    torch._dynamo.reset()
    resolved, tokens = variant("x", name), random_tokens(2, 9)
    eager = decoder(resolved, dtype=torch.float32)
    model = compiled_layers(decoder(resolved, dtype=torch.float32))
    assert list(model.state_dict()) == list(eager.state_dict())
    with torch.no_grad():
        cache = model.new_cache(2, 9)
        cached = torch.cat((model(tokens[:, :6], cache), model(tokens[:, 6:], cache)), dim=1)
        torch.testing.assert_close(cached, eager(tokens), rtol=1e-4, atol=1e-4)
