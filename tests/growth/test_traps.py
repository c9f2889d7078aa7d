"""What must not be done, or would never train: refused, avoided by default, and shown to be wrong by hand."""

import math

import expansions
import pytest
import torch
from growth_cases import (
    Weights,
    difference,
    logits_of,
    model_of,
    shaped,
    small_model,
    tokens_for,
    unmoved,
    unreachable,
    with_random_weights,
)
from torch import nn

from widthwise.config_io import UserError, parse, to_data
from widthwise.growth.plan.model_plan import GrowthPlan, plan_growth
from widthwise.merging import merge
from widthwise.model.axes import RMSNorm
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.dynamic import DynamicConfig

pytestmark = pytest.mark.usefixtures("float64")


def grown(config: ModelConfig, expansion, seed: int = 0) -> tuple[GrowthPlan, Weights, Weights]:
    """The plan, the old weights and the grown ones."""
    plan, weights = plan_growth(config, *expansion), with_random_weights(config, seed)
    return plan, weights, dict(plan.weights(weights, seed))


def loss_of_function(config: ModelConfig, weights: Weights, new: ModelConfig, new_weights: Weights) -> float:
    """Relative difference of logits."""
    tokens = tokens_for(0)[:, :-1]
    return difference(logits_of(config, weights, tokens), logits_of(new, new_weights, tokens))


def dead_share(plan: GrowthPlan, weights: Weights, names: list[str] | None = None, n_steps: int = 2) -> float:
    """Share of the new entries (of some tensors) that some steps of AdamW do not move, though tokens reach them."""
    tokens, is_new = tokens_for(3, batch=6), plan.is_new()
    never = unmoved(plan.new, weights, tokens, n_steps)
    cannot = unreachable(plan.new, weights, tokens)
    names = names or [name for name, entries in is_new.items() if entries.any()]
    n_new = sum(int((is_new[name] & ~cannot[name]).sum()) for name in names)
    assert n_new
    return sum(int((never[name] & is_new[name] & ~cannot[name]).sum()) for name in names) / n_new


def with_zeros(plan: GrowthPlan, weights: Weights, *endings: str) -> Weights:
    """New entries of the parameters with such names set to 0."""
    is_new = plan.is_new()
    names = [name for name in weights if name.endswith(endings)]
    assert names
    return {
        name: weight.masked_fill(is_new[name], 0.0) if name in names else weight for name, weight in weights.items()
    }


class TestZeroTimesZero:
    """Where both factors of a product are 0, neither has a gradient."""

    def test_a_wider_stream_with_gains_of_zero(self):
        config = small_model()
        plan, weights, new = grown(config, expansions.widen_stream(config, 5))
        assert dead_share(plan, new) == 0
        by_hand = with_zeros(plan, new, "norm.weight")
        assert loss_of_function(config, weights, plan.new, by_hand) < 1e-12
        assert dead_share(plan, by_hand, n_steps=8) == 1

    def test_a_wider_stream_that_nobody_reads(self):
        config = small_model(tie_embeddings=True)
        plan, _, new = grown(config, expansions.widen_stream(config, 5))
        assert dead_share(plan, new) == 0
        readers = ("w_q.weight", "w_k.weight", "w_v.weight", "w_gate.weight", "w_up.weight")
        assert dead_share(plan, with_zeros(plan, new, *readers), n_steps=8) == 1

    @pytest.mark.parametrize("second", ["w_up.weight", "w_gate.weight"])
    def test_units_of_which_two_matrices_of_three_are_zero(self, second):
        config = small_model()
        plan, _, new = grown(config, expansions.widen_ffn(config, [0, 1], 15))
        assert dead_share(plan, new) == 0
        assert dead_share(plan, with_zeros(plan, new, second), n_steps=8) == 1

    @pytest.mark.parametrize("activation", ["gelu", "silu", "relu", "relu2"])
    def test_units_without_a_gate(self, activation):
        config = small_model(ffn={"kind": "mlp", "d_ff": 10, "bias": True, "activation": activation})
        plan, _, new = grown(config, expansions.widen_ffn(config, [0, 1], 15))
        assert dead_share(plan, new) == 0
        share = dead_share(plan, with_zeros(plan, new, "w_up.weight", "w_up.bias.weight"), n_steps=8)
        assert share == 1

    @pytest.mark.parametrize("expand", [expansions.widen_values, None])
    def test_heads_and_values_of_zero(self, expand):
        config = small_model()
        expansion = expansions.add_heads(config, [0], 5, 5) if expand is None else expand(config, [0], 7)
        plan, _, new = grown(config, expansion)
        assert dead_share(plan, new) == 0
        assert dead_share(plan, with_zeros(plan, new, "w_v.weight"), n_steps=8) == 1

    @pytest.mark.parametrize("qk_norm", [None, {"over": "head"}, {"over": "all_heads"}])
    def test_queries_and_keys_of_zero(self, qk_norm):
        config = small_model(attention={"qk_norm": qk_norm})
        plan, _, new = grown(config, expansions.widen_keys(config, [0, 2], 8))
        assert dead_share(plan, new) == 0
        names = [f"layers.{i}.attention.{matrix}.weight" for i in (0, 2) for matrix in ("w_q", "w_k")]
        assert dead_share(plan, with_zeros(plan, new, "w_q.weight"), names, n_steps=8) == 1

    def test_a_layer_with_gains_of_zero_before_a_swiglu(self):
        config = small_model()
        plan, weights, new = grown(config, expansions.add_layers(config, [1]))
        assert dead_share(plan, new) == 0
        gains = {name: torch.zeros_like(new[name]) for name in new if name.startswith("layers.1.ffn.norm")}
        assert loss_of_function(config, weights, plan.new, new | gains) == 0
        ffn = [name for name in new if name.startswith("layers.1.ffn")]
        assert dead_share(plan, new | gains, ffn, n_steps=8) == 1

    def test_slots_without_content_that_nobody_reads(self):
        residual = {"kind": "hyper_connections", "n_slots": 2, "dynamic": False}
        config = small_model(residual=residual)
        plan, weights, new = grown(config, expansions.add_slots(config, 3))
        assert dead_share(plan, new) == 0
        by_hand = with_zeros(plan, new, "residual.static.weight", "embedding.weight")
        assert loss_of_function(config, weights, plan.new, by_hand) < 1e-12
        assert dead_share(plan, by_hand, n_steps=8) == 1

    def test_a_wider_stream_behind_gains_of_zero(self):
        """The layer was added behind reordered norms: its gains are 0, or in a copy of it the new rows."""
        config = small_model(norm={"placement": "reordered"})
        added, _, weights = grown(config, expansions.add_layers(config, [1]))
        plan = plan_growth(added.new, *expansions.widen_stream(added.new, 3))
        assert dead_share(plan, dict(plan.weights(weights)), n_steps=3) == 0
        wider, _, weights = grown(config, expansions.widen_stream(config, 3))
        plan = plan_growth(wider.new, *expansions.add_layers(wider.new, [1]), new_layers="copied")
        assert dead_share(plan, dict(plan.weights(weights)), n_steps=3) == 0


class TestNormsOfQueriesAndKeys:
    @pytest.mark.parametrize(
        ("over", "expand", "message"),
        [
            ("head", lambda m: expansions.widen_keys(m, [1], 6), "layers.1.attention.head_dim: got 6"),
            (
                "all_heads",
                lambda m: expansions.widen_keys(m, [1], 6),
                "n_heads times head_dim: got 18",
            ),
            (
                "all_heads",
                lambda m: expansions.add_heads(m, [1], 4, 4),
                "n_heads times head_dim: got 16",
            ),
            ("all_heads", lambda m: expansions.add_heads(m, [1], 6, 4), "n_kv_heads: got 4; must divide n_heads"),
        ],
    )
    def test_other_sizes_than_multiples_are_refused(self, over, expand, message):
        config = small_model(attention={"qk_norm": {"over": over}})
        with pytest.raises(UserError, match=message):
            plan_growth(config, *expand(config))

    def test_all_heads_and_their_size_together_are_two_growths(self):
        config = small_model(attention={"qk_norm": {"over": "all_heads"}})
        both = expansions.widen_keys(expansions.add_heads(config, [0], 6, 6)[0], [0], 8)
        with pytest.raises(UserError, match=r"layers\.0\.attention\.head_dim: got 8 beside n_kv_heads 6.*two growths"):
            plan_growth(config, *both)
        first = plan_growth(config, *expansions.add_heads(config, [0], 6, 6))
        plan_growth(first.new, *expansions.widen_keys(first.new, [0], 8))

    @pytest.mark.parametrize("over", ["head", "all_heads"])
    def test_queries_drawn_behind_a_norm_change_the_function(self, over):
        config = small_model(attention={"qk_norm": {"over": over}})
        plan, weights, new = grown(config, expansions.widen_keys(config, [0], 8))
        assert loss_of_function(config, weights, plan.new, new) < 1e-12
        drawn = plan_growth(*(_without_qk_norm(c) for c in (config, plan.new)))
        naive = dict(
            drawn.weights({name: weights[name] for name in weights if "q_norm" not in name and "k_norm" not in name})
        )
        data = to_data(plan.new)
        for layer in data["layers"]:
            layer["attention"]["qk_norm"] |= {"q_norm_dim": None, "k_norm_dim": None}
        assert loss_of_function(config, weights, parse(ModelConfig, data, "model"), new | naive) > 1e-2


def _without_qk_norm(config: ModelConfig) -> ModelConfig:
    data = to_data(config)
    for layer in data["layers"]:
        layer["attention"]["qk_norm"] = None
    return parse(ModelConfig, data, "model")


class TestLayersBehindReorderedNorms:
    LR = 1e-3

    def rms_after_one_step(self, plan: GrowthPlan, weights: Weights) -> float:
        """The root mean square of what the added attention writes."""
        model = model_of(plan.new, weights)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.LR, weight_decay=0.0)
        tokens = tokens_for(0)
        model.loss(tokens[:, :-1], tokens[:, 1:]).objective.backward()
        optimizer.step()
        written = []
        model.layers[1].attention.register_forward_hook(lambda module, given, made: written.append(made))
        model(tokens[:, :-1])
        return float(written[0].detach().square().mean().sqrt())

    def test_the_gain_is_zero_so_that_one_step_is_small(self):
        config = small_model(norm={"placement": "reordered"})
        plan, _, new = grown(config, expansions.add_layers(config, [1]))
        assert not new["layers.1.attention.norm.weight"].any()
        assert new["layers.1.attention.w_o.weight"].all()
        assert 0 < self.rms_after_one_step(plan, new) <= 10 * self.LR

    def test_matrices_of_zero_would_jump_to_their_full_size(self):
        config = small_model(norm={"placement": "reordered"})
        plan, weights, new = grown(config, expansions.add_layers(config, [1]))
        parts = {"attention.norm": 1.0, "attention.w_o": 0.0, "ffn.norm": 1.0, "ffn.w_down": 0.0}
        by_hand = {f"layers.1.{part}.weight": value for part, value in parts.items()}
        by_hand = new | {name: torch.full_like(new[name], value) for name, value in by_hand.items()}
        assert loss_of_function(config, weights, plan.new, by_hand) == 0
        assert self.rms_after_one_step(plan, by_hand) > 0.5


FOUR_EXPERTS = {"kind": "moe", "n_experts": 4, "top_k": 2, "d_expert": 2}


class TestMixtures:
    @pytest.mark.parametrize(("n_experts", "top_k"), [(5, 2), (8, 2), (4, 3), (8, 3), (2, 1)])
    def test_experts_that_would_take_weight_from_the_others_are_refused(self, n_experts, top_k):
        config = small_model(ffn=FOUR_EXPERTS)
        wanted = small_model(ffn={**FOUR_EXPERTS, "n_experts": n_experts, "top_k": top_k})
        with pytest.raises(
            UserError, match=r"layers\.0\.ffn\.n_experts: got .* multiply n_experts and top_k .* d_shared"
        ):
            plan_growth(config, wanted)

    def test_copies_with_the_same_top_k_change_the_function(self):
        config = small_model(ffn=FOUR_EXPERTS)
        plan, weights, new = grown(config, expansions.duplicate_experts(config, [0], 2))
        data = to_data(plan.new)
        data["layers"][0]["ffn"]["top_k"] = 2
        assert loss_of_function(config, weights, plan.new, new) < 1e-12
        assert loss_of_function(config, weights, parse(ModelConfig, data, "model"), new) > 1e-2

    def test_parts_without_the_factor_change_the_function(self):
        config = small_model(ffn=FOUR_EXPERTS)
        plan, weights, new = grown(config, expansions.split_experts(config, [0], 2))
        assert loss_of_function(config, weights, plan.new, new) < 1e-12
        halved = new | {"layers.0.ffn.w_down.weight": new["layers.0.ffn.w_down.weight"] / 2}
        assert loss_of_function(config, weights, plan.new, halved) > 1e-2

    def test_copies_that_are_pulled_apart_add_what_equal_ones_never_do(self):
        """Rank of the matrices of the copies after 50 steps."""
        config = small_model(ffn={"kind": "moe", "n_experts": 2, "top_k": 1, "d_expert": 2})
        plan, _, new = grown(config, expansions.duplicate_experts(config, [0], 2))
        name, n_old = "layers.0.ffn.w_up.weight", 4
        equal = new[name].clone().unflatten(0, (2, 2, 2))
        equal[:, 1] = equal[:, 0]
        for weights, is_locked in ((new, False), (new | {name: equal.flatten(0, 2)}, True)):
            trained = self.trained(plan.new, weights)[name]
            first, second = trained.unflatten(0, (2, 2, 2)).unbind(dim=1)
            assert torch.allclose(first, second, rtol=0, atol=1e-9) == is_locked
            assert torch.linalg.matrix_rank(trained, rtol=1e-6) == (n_old if is_locked else 2 * n_old)

    @staticmethod
    def trained(config: ModelConfig, weights: Weights, n_steps: int = 50) -> Weights:
        model, tokens = model_of(config, weights), tokens_for(0, batch=4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(n_steps):
            optimizer.zero_grad()
            model.loss(tokens[:, :-1], tokens[:, 1:]).objective.backward()
            optimizer.step()
        return {name: parameter.detach() for name, parameter in model.named_parameters()}


class TestConstantsThatFollowWidths:
    def test_a_narrow_layer_measures_what_it_measured(self):
        config = shaped([20, 8, 16])
        plan, weights, new = grown(config, expansions.widen_layers(config, {1: 12}))
        norms = [plan.new.layers[1].attention_norm, plan.new.layers[1].ffn_norm]
        assert [(norm.stat_width, norm.norm_dim) for norm in norms] == [(8, 8)] * 2
        assert loss_of_function(config, weights, plan.new, new) < 1e-12
        data = to_data(plan.new)
        data["layers"][1]["attention_norm"] |= {"stat_width": None, "norm_dim": 12}
        assert loss_of_function(config, weights, parse(ModelConfig, data, "model"), new) > 1e-2

    def test_a_stream_of_layer_norms_is_widened_with_its_mean(self):
        config = small_model(norm={"kind": "layer"}, tie_embeddings=True, positions={"n_positions": 9})
        plan, weights, new = grown(config, expansions.widen_stream(config, 5))
        assert loss_of_function(config, weights, plan.new, new) < 1e-12
        means = weights["embedding.weight"].mean(dim=1, keepdim=True).expand(-1, 5)
        torch.testing.assert_close(new["embedding.weight"][:, 12:], means, rtol=1e-12, atol=0)
        writers = ("embedding.weight", "positions.weight", "w_o.weight", "w_down.weight")
        assert loss_of_function(config, weights, plan.new, with_zeros(plan, new, *writers)) > 0.1

    def test_frequencies_stay_in_a_table(self):
        config = small_model(attention={"rope_base": 50.0})
        plan, weights, new = grown(config, expansions.widen_keys(config, [0], 6))
        old_rope, rope = (c.layers[0].attention.rope for c in (config, plan.new))
        assert rope.pair_frequencies[:2] == old_rope.pair_frequencies
        assert loss_of_function(config, weights, plan.new, new) < 1e-12
        data = to_data(plan.new)
        data["layers"][0]["attention"]["rope_frequencies"] = None
        assert loss_of_function(config, weights, parse(ModelConfig, data, "model"), new) > 1e-3

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"rope_base": 500.0},
                r"layers\.0\.attention\.rope_frequencies: the 2 frequencies of the old head are not",
            ),
            ({"rope_base": None}, r"layers\.0\.attention\.rope_base: rotation cannot begin or end"),
            ({"head_dim": 6, "rope_base": 500.0}, r"layers\.0\.attention\.rope_frequencies: .* or raise rope_base to"),
        ],
    )
    def test_other_frequencies_are_refused(self, changes, message):
        data = to_data(small_model())
        for layer in data["layers"]:
            layer["attention"] |= changes
        with pytest.raises(UserError, match=message):
            plan_growth(small_model(), parse(ModelConfig, data, "model"))

    def test_a_higher_base_that_keeps_the_old_frequencies_is_taken(self):
        config = small_model()
        data = to_data(config)
        data["layers"][1]["attention"] |= {"head_dim": 6, "v_head_dim": 4, "rope_base": 10000.0 ** (6 / 4)}
        plan = plan_growth(config, parse(ModelConfig, data, "model"))
        weights = with_random_weights(config, 0)
        assert plan.new.layers[1].attention.rope_frequencies is None
        assert loss_of_function(config, weights, plan.new, dict(plan.weights(weights))) < 1e-12

    def test_units_keep_their_ranks(self):
        config = small_model(ffn={"kind": "dynamic", "d_ff": 8, "start": 0.5, "mask": {"kind": "hard"}})
        plan, weights, new = grown(config, expansions.widen_ffn(config, [0], 13))
        ffn = plan.new.layers[0].ffn
        assert isinstance(ffn, DynamicConfig)
        assert ffn.grown_from == (8,)
        assert loss_of_function(config, weights, plan.new, new) < 1e-12
        data = to_data(plan.new)
        data["layers"][0]["ffn"]["grown_from"] = []
        assert loss_of_function(config, weights, parse(ModelConfig, data, "model"), new) > 1e-2

    def test_new_slots_that_are_read_change_the_function(self):
        config = small_model(residual={"kind": "hyper_connections", "n_slots": 2, "dynamic": False})
        plan, weights, new = grown(config, expansions.add_slots(config, 3))
        assert loss_of_function(config, weights, plan.new, new) < 1e-12
        name = "layers.0.attention_residual.static.weight"
        as_untrained = new[name].clone().view(3, -1)
        as_untrained[2, 0] = 1.0
        assert loss_of_function(config, weights, plan.new, new | {name: as_untrained.flatten()}) > 1e-2

    @pytest.mark.parametrize("kind", ["rms_mean", "raw_mean"])
    def test_means_over_a_wider_stream_are_refused(self, kind):
        config = small_model(ffn={"kind": "dynamic", "d_ff": 8, "score": {"kind": kind}})
        with pytest.raises(UserError, match=rf"layers\.0\.ffn\.score: got {kind}, a mean over the stream"):
            plan_growth(config, *expansions.widen_stream(config, 4))

    def test_the_rule_of_the_paper_is_wrong_by_eps(self):
        """Gains times sqrt(d / d'), eps as it was: to first order (eps / 2) (d' / d - 1) / (S / d)."""
        d, wider, eps, size = 12, 20, 1e-6, 0.02
        x = size * torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        old, naive = RMSNorm({"d_model": d}, eps, d), RMSNorm({"d_model": wider}, eps, wider)
        nn.init.ones_(old.weight)
        nn.init.constant_(naive.weight, math.sqrt(d / wider))
        y, z = old(x), naive(nn.functional.pad(x, (0, wider - d)))[:d]
        expected = eps / 2 * (wider / d - 1) / float(x.square().mean())
        assert difference(y, z) == pytest.approx(expected, rel=0.02)
        assert expected > 5e-4


class TestOtherFunctions:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"vocab_size": 18}, "vocab_size: got 18 where it was 17"),
            ({"tie_embeddings": True}, "tie_embeddings: got True where it was False"),
            ({"embedding_multiplier": 2.0}, "embedding_multiplier: got 2.0 where it was 1.0"),
            ({"logit_multiplier": 0.5}, "logit_multiplier: got 0.5 where it was 1.0"),
            ({"residual": {"kind": "plain", "multiplier": 0.5}}, "residual.multiplier: got 0.5"),
            ({"residual": {"kind": "plain", "resize": "zero"}}, "residual.resize: got 'zero'"),
            ({"norm": {"kind": "layer"}}, "layers.0.attention_norm.kind: got 'layer'"),
            ({"norm": {"placement": "reordered"}}, "layers.0.norm_placement: got 'reordered'"),
            ({"attention": {"qk_norm": {"over": "head"}}}, "layers.0.attention.qk_norm: got"),
            ({"ffn": {"kind": "mlp", "d_ff": 10}}, "layers.0.ffn.kind: got 'mlp' where it was 'swiglu'"),
            ({"ffn": {"kind": "swiglu", "d_ff": 9}}, "layers.0.ffn.w_gate: got 9 hidden units where there were 10"),
            ({"d_model": 8}, "d_model: layers of widths"),
            ({"n_layers": 2}, "n_layers: got 2 where there were 3"),
        ],
    )  # fmt: skip
    def test_what_is_no_larger_form_of_the_same_function_is_refused(self, changes, message):
        with pytest.raises(UserError) as raised:
            plan_growth(small_model(), small_model(**changes))
        assert str(raised.value).startswith(message)

    @pytest.mark.parametrize(
        ("base", "changes", "message"),
        [
            ({"attention": {"qk_norm": {"over": "head"}}}, {"qk_norm": {"over": "all_heads"}}, "qk_norm.over: got"),
            ({"ffn": {"kind": "mlp"}}, {"activation": "relu"}, "activation: got 'relu' where it was 'gelu'"),
            ({"ffn": {"kind": "hourglass", "d_hidden": 4}}, {"block_multiplier": 0.5}, "block_multiplier: got 0.5"),
            ({"ffn": {"kind": "hourglass", "d_hidden": 4}}, {"share_weights": True}, "share_weights: got True"),
            ({"ffn": {"kind": "hourglass", "d_hidden": 4}}, {"norm": "shared"}, "norm: got 'shared'"),
            ({"ffn": {"kind": "dynamic"}}, {"min_fraction": 0.5}, "min_fraction: got 0.5"),
            ({"ffn": {"kind": "dynamic"}}, {"score": {"kind": "mlp"}}, "score: got"),
            ({"ffn": {"kind": "dynamic"}}, {"mask": {"kind": "hard"}}, "mask.kind: got 'hard'"),
            ({"residual": {"kind": "hyper_connections"}}, {"dynamic": False}, "residual.dynamic: got False"),
            ({"residual": {"kind": "hyper_connections"}}, {"reduce": "slot"}, "residual.reduce: got 'slot'"),
            ({"residual": {"kind": "hyper_connections"}}, {"embedding": "expand"}, "residual.embedding: got 'expand'"),
            ({"mtp": {"n_depths": 1}}, {"n_depths": 2}, "mtp.n_depths: got 2 where it was 1"),
            ({"mtp": {"n_depths": 1}}, {"share_reduce": False}, "mtp.share_reduce: got False"),
        ],
    )
    def test_options_of_a_part_that_are_no_sizes_are_refused(self, base, changes, message):
        """One section and a change of it."""
        (section,) = base
        with pytest.raises(UserError) as raised:
            plan_growth(small_model(**base), small_model(**merge(base, {section: changes})))
        assert message in str(raised.value)

    def test_untying_and_losing_positions_are_refused(self):
        config = small_model(tie_embeddings=True, positions={"n_positions": 8})
        with pytest.raises(UserError, match="tie_embeddings: got False where it was True"):
            plan_growth(config, small_model(positions={"n_positions": 8}))
        with pytest.raises(UserError, match="positions: got None"):
            plan_growth(config, small_model(tie_embeddings=True))

    @pytest.mark.parametrize(
        ("changes", "widths", "message"),
        [
            ({"norm": {"kind": "layer"}}, [16, 12, 12], "d_model: under layer norms .* equally wide"),
            ({"norm": {"kind": "layer", "placement": "reordered"}}, None, "d_model: cannot grow behind reordered"),
            (
                {"norm": {"kind": "layer"}, "ffn": {"kind": "hourglass", "norm": "shared"}},
                None,
                "ffn.norm: blocks without",
            ),
            ({"residual": {"kind": "plain", "resize": "zero"}}, [12, 16, 12], "residual.resize: got zero; a layer"),
            ({"residual": {"kind": "plain", "resize": "projection"}}, [12, 16, 12], "residual.resize: got projection"),
            ({"residual": {"kind": "plain", "resize": "full_projection"}}, [12, 16, 12], "resize: got full_projection"),
        ],
    )
    def test_streams_that_cannot_grow_are_refused(self, changes, widths, message):
        config = shaped([12, 12, 12] if widths is None or "norm" in changes else [16, 12, 16], **changes)
        if widths is None:
            expansion = expansions.widen_stream(config, 4)
        else:
            expansion = expansions.widen_layers(config, {i: w for i, w in enumerate(widths) if w > config.widths[i]})
        with pytest.raises(UserError, match=message):
            plan_growth(config, *expansion)
