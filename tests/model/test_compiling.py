import pytest
import torch
import torch._dynamo
from tiny_runs import tiny_recipe
from torch._dynamo.utils import counters
from torch.utils.checkpoint import set_checkpoint_early_stop

from widthwise.data.boundaries import UNTOLD, Boundaries
from widthwise.model.compiling import compile_layers
from widthwise.model.decoder import build
from widthwise.model.recompute import RECOMPUTE

TOKENS = torch.randint(0, 257, (2, 13), generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=8):
        yield
    torch._dynamo.reset()


def compiled(widths: list[int], graphs: list, *overrides: str) -> torch.nn.Module:
    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    shape = f"model.shape={{kind: explicit, widths: {widths}}}"
    model = build(tiny_recipe(f"model.n_layers={len(widths)}", shape, *overrides).explicit_model, seed=1)
    compile_layers(model, backend=count)
    return model


def train_twice(model):
    for _ in range(2):
        objective = model.loss(TOKENS[:, :-1], TOKENS[:, 1:]).objective
        objective.backward()


@pytest.mark.slow
def test_twelve_distinct_widths_make_twelve_whole_graphs():
    graphs: list = []
    model = compiled([104, 88, 72, 56, 40, 24, 8, 16, 32, 48, 64, 80], graphs)
    train_twice(model)
    assert len(graphs) == 12
    assert not counters["graph_break"]
    with torch._dynamo.config.patch(error_on_recompile=True):
        train_twice(model)


def test_layers_that_are_alike_share_a_graph():
    graphs: list = []
    train_twice(compiled([16] * 10, graphs))
    assert len(graphs) == 1


def test_compiled_layers_compute_the_same_and_keep_their_names():
    widths = [24, 8, 16, 24]
    model = compiled(widths, [])
    plain = build(model.config, seed=1)
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(model(TOKENS), plain(TOKENS))


@pytest.mark.parametrize("residual", ["{kind: plain}", "{kind: hyper_connections, slot_width: 8, n_slots: 4}"])
def test_layers_of_further_heads_are_compiled_too_and_compute_the_same(residual):
    graphs: list = []
    model = compiled([16, 16], graphs, "model.mtp={n_depths: 2}", f"model.residual={residual}")
    plain = build(model.config, seed=1)
    found, expected = (each.loss(TOKENS[:, :-1], TOKENS[:, 1:]) for each in (model, plain))
    assert len(graphs) == 1 + 2  # one of the two layers, and of each head, whose rows are shorter by one
    assert not counters["graph_break"]
    torch.testing.assert_close(found.mtp_losses, expected.mtp_losses)
    for each in (found, expected):
        each.objective.backward()
    for ours, truth in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, truth.grad)


def test_rows_of_several_documents_need_as_many_graphs_and_compute_the_same():
    n_graphs = []
    tokens, targets = TOKENS[:, :-1] % 5, TOKENS[:, 1:]
    for several in ((UNTOLD, UNTOLD), (Boundaries(3, masks=True, resets=True), Boundaries(2, masks=True, resets=True))):
        torch._dynamo.reset()
        graphs: list = []
        model = compiled([24, 8], graphs, "model.mtp={n_depths: 1}")
        plain = build(model.config, seed=1)
        for told in several:
            documents, positions = told.documents(tokens), told.positions(tokens)
            for each in (model, plain):
                each.loss(tokens, targets, documents=documents, positions=positions).objective.backward()
        for ours, truth in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, truth.grad)
        n_graphs.append(len(graphs))
    assert n_graphs[1] == n_graphs[0] > 0
    assert not counters["graph_break"]


@pytest.mark.parametrize("residual", ["{kind: plain}", "{kind: hyper_connections, slot_width: 8, n_slots: 4}"])
def test_layers_that_run_again_need_no_further_graphs_and_compute_the_same(residual):
    found = []
    for kind in ("none", "layer"):
        torch._dynamo.reset()
        graphs: list = []
        model = compiled([24, 8], graphs, "model.mtp={n_depths: 1}", f"model.residual={residual}")
        model.recompute = RECOMPUTE[kind]
        # Left early, a graph that runs as it is would leave autocast entered, and with it stale casts of weights.
        with set_checkpoint_early_stop(False):
            train_twice(model)
        found.append((len(graphs), [parameter.grad for parameter in model.parameters()]))
    assert not counters["graph_break"]
    assert found[0][0] == found[1][0] > 0
    torch.testing.assert_close(found[1][1], found[0][1])
