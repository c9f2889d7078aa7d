import kernels
import pytest
import torch


@pytest.mark.parametrize("kernel", kernels.KERNELS)
@pytest.mark.parametrize("precision", kernels.DTYPES)
def test_both_forms_are_timed_and_the_fused_one_keeps_less_or_tables_alone(kernel, precision, monkeypatch):
    for name, size in (("N_TOKENS", 31), ("D_MODEL", 24), ("D_FF", 40), ("VOCAB_SIZE", 97), ("HEAD_DIM", 6)):
        monkeypatch.setattr(kernels, name, size)
    report = kernels.fused_over_reference(kernel, precision, n_rounds=2)
    assert report["variants"]["fused"]["n_rounds"] == 2
    ours, plain = (report["variants"][form]["kept_bytes"] for form in ("fused", "reference"))
    assert ours < plain or (kernel == "rotary" and ours == plain == 2 * 31 * 6 * 4)


def test_kept_bytes_counts_each_storage_once():
    x = torch.zeros(7, 5, requires_grad=True)
    assert kernels.kept_bytes(lambda: x * x) == 7 * 5 * 4
