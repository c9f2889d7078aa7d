import pytest
import torch
from model_cases import decoder, random_tokens, variant

pytestmark = pytest.mark.slow


def compiled_layers(model, backend="aot_eager"):
    for layer in model.layers:
        layer.compile(backend=backend, dynamic=False)
    return model


def one_layer(name):
    """The variant with its first layer alone, because a compiler takes seconds for each."""
    resolved = variant("uniform", name)
    return resolved.model_copy(update={"layers": resolved.layers[:1]})


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("plain", "inductor"),
        ("qk_norm_all_heads", "aot_eager"),
        ("values_of_other_sizes", "aot_eager"),
        ("reordered", "aot_eager"),
        ("slots", "aot_eager"),
        ("slots_static_padded", "aot_eager"),
    ],
)
def test_compiled_layers_equal_eager_ones(name, backend):
    torch._dynamo.reset()
    resolved = one_layer(name)
    tokens, targets = random_tokens(2, 9), random_tokens(2, 9, seed=1)
    losses, gradients = [], []
    for prepare in (lambda model: model, lambda model: compiled_layers(model, backend)):
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
    resolved, tokens = one_layer(name), random_tokens(2, 9)
    eager = decoder(resolved, dtype=torch.float32)
    model = compiled_layers(decoder(resolved, dtype=torch.float32))
    assert list(model.state_dict()) == list(eager.state_dict())
    with torch.no_grad():
        cache = model.new_cache(2, 9)
        cached = torch.cat((model(tokens[:, :6], cache), model(tokens[:, 6:], cache)), dim=1)
        torch.testing.assert_close(cached, eager(tokens), rtol=1e-4, atol=1e-4)
