import kernels
import pytest
import torch


@pytest.mark.parametrize("kernel", kernels.KERNELS)
@pytest.mark.parametrize("precision", kernels.DTYPES)
def test_both_forms_are_timed_and_the_fused_one_keeps_less(kernel, precision, monkeypatch):
    for name, size in (("N_TOKENS", 31), ("D_MODEL", 24), ("D_FF", 40), ("VOCAB_SIZE", 97)):
        monkeypatch.setattr(kernels, name, size)
    report = kernels.fused_over_reference(kernel, precision, n_rounds=2)
    assert report["variants"]["fused"]["n_rounds"] == 2
    assert report["variants"]["fused"]["kept_bytes"] < report["variants"]["reference"]["kept_bytes"]


def test_kept_bytes_counts_each_storage_once():
    x = torch.zeros(7, 5, requires_grad=True)
    assert kernels.kept_bytes(lambda: x * x) == 7 * 5 * 4
