import pytest
import torch

from widthwise.analysis.logit_lens import LogitLens


def test_distributions_are_in_single_precision_where_logits_are_not():
    generator = torch.Generator().manual_seed(0)
    hidden = [(4 * torch.randn(6, 300, generator=generator)).bfloat16() for _ in range(2)]
    targets, lens = torch.arange(6), LogitLens()
    lens.add(hidden, targets, lambda states: states)
    one, other = (torch.distributions.Categorical(logits=states.double()) for states in hidden)
    found = lens.summary()
    for entry, expected in zip(found, (one, other), strict=True):
        assert entry["target_log_prob"] == pytest.approx(expected.log_prob(targets).mean().item(), rel=1e-5)
        assert entry["entropy"] == pytest.approx(expected.entropy().mean().item(), rel=1e-5)
    there, back = (torch.distributions.kl_divergence(*pair).mean().item() for pair in ((one, other), (other, one)))
    assert [entry["kl_to_next"] for entry in found] == [pytest.approx((there + back) / 2, rel=1e-5), None]
