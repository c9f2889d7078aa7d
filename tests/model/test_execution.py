"""Compiled layers: one whole graph for each width, with the same results as eager layers."""

import pytest
import torch
import torch._dynamo
from model_cases import config, decoder, random_tokens, variant
from tiny_runs import tiny_recipe
from torch._dynamo.utils import counters

from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.model.decoder import build
from widthwise.model.execution import compile_layers

pytestmark = pytest.mark.hard
TOKENS = torch.randint(0, 257, (2, 13), generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=8):
        yield
    torch._dynamo.reset()


def one_layer(name):
    """Return the variant with only its first layer, because compiling takes seconds for each layer."""
    resolved = variant("uniform", name)
    return resolved.model_copy(update={"layers": resolved.layers[:1]})


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("plain", "inductor"),
        *((name, "aot_eager") for name in ("qk_norm_all_heads", "values_of_other_sizes", "reordered", "moe", "gemma2")),
        *((name, "aot_eager") for name in ("slots", "slots_static_padded")),
    ],
)
def test_compiled_layers_equal_eager_ones_and_decode_with_a_cache(name, backend):
    resolved, tokens, targets = one_layer(name), random_tokens(2, 9), random_tokens(2, 9, seed=1)
    eager, compiled = (decoder(resolved, dtype=torch.float32) for _ in range(2))
    for layer in compiled.layers:
        layer.compile(backend=backend, fullgraph=True, dynamic=False)
    results = []
    for model in (compiled, eager):
        objective, losses, *_ = model.loss(tokens, targets)
        objective.backward()
        results.append([losses, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)
    if name in ("reordered", "gemma2", "slots"):
        with torch.no_grad():
            cache = compiled.new_cache(2, 9)
            cached = torch.cat((compiled(tokens[:, :6], cache), compiled(tokens[:, 6:], cache)), dim=1)
            torch.testing.assert_close(cached, eager(tokens), rtol=1e-4, atol=1e-4)


def compiled_model(widths: list[int], graphs: list, *overrides: str) -> torch.nn.Module:
    """Return a model whose layers append each graph that is compiled to `graphs`."""

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    shape = f"model.shape={{kind: explicit, widths: {widths}}}"
    model = build(tiny_recipe(f"model.n_layers={len(widths)}", shape, *overrides).explicit_model, seed=1)
    compile_layers(model, backend=count)
    return model


def train_twice(model):
    for _ in range(2):
        model.loss(TOKENS[:, :-1], TOKENS[:, 1:]).objective.backward()


@pytest.mark.parametrize(
    ("widths", "n_graphs"), [([104, 88, 72, 56, 40, 24, 8, 16, 32, 48, 64, 80], 12), ([16] * 10, 1)]
)
def test_each_width_has_one_whole_graph_and_equal_layers_share_it(widths, n_graphs):
    graphs: list = []
    model = compiled_model(widths, graphs)
    train_twice(model)
    assert len(graphs) == n_graphs
    assert not counters["graph_break"]
    with torch._dynamo.config.patch(error_on_recompile=True):
        train_twice(model)


def test_rows_of_several_documents_need_no_more_graphs_and_have_eager_gradients():
    n_graphs = []
    tokens, targets = TOKENS[:, :-1] % 5, TOKENS[:, 1:]
    for boundaries_of_steps in (
        (NO_BOUNDARIES, NO_BOUNDARIES),
        (Boundaries(3, masks=True, resets=True), Boundaries(2, masks=True, resets=True)),
    ):
        torch._dynamo.reset()
        graphs: list = []
        model = compiled_model([24, 8], graphs, "model.mtp={n_depths: 1}")
        plain = build(model.config, seed=1)
        assert list(model.state_dict()) == list(plain.state_dict())
        for boundaries in boundaries_of_steps:
            documents, positions = boundaries.documents(tokens), boundaries.positions(tokens)
            for network in (model, plain):
                network.loss(tokens, targets, documents=documents, positions=positions).objective.backward()
        for compiled, eager in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(compiled.grad, eager.grad)
        n_graphs.append(len(graphs))
    assert n_graphs[1] == n_graphs[0] > 0
    assert not counters["graph_break"]


def test_with_one_compiled_layer_the_gradients_of_slots_are_the_same():
    """The state that a graph returns is kept, because no write can recompute it."""
    residual, gradients = {"kind": "hyper_connections", "slot_width": 4, "n_slots": 11, "state_every": 10}, []
    for is_compiled in (False, True):
        model = decoder(config("zigzag", residual=residual))
        if is_compiled:
            model.layers[2].compile(backend="aot_eager", fullgraph=True)
        model.loss(random_tokens(2, 7), random_tokens(2, 7, seed=1)).objective.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)
