"""The environment variable that chooses between hand-written forms and plain torch."""

import pytest
import torch
from boxes import refusal

from widthwise.kernels.dispatch import reference_wanted, use_fused


@pytest.mark.parametrize(("value", "is_reference"), [("", False), ("fused", False), ("reference", True)])
def test_the_environment_chooses_the_form(monkeypatch, value, is_reference):
    monkeypatch.setenv("WIDTHWISE_KERNELS", value)
    assert reference_wanted() == is_reference
    assert use_fused(torch.ones(1)) != is_reference


def test_a_form_that_does_not_exist_is_a_mistake_of_the_users(monkeypatch):
    monkeypatch.setenv("WIDTHWISE_KERNELS", "triton")
    assert "WIDTHWISE_KERNELS: got 'triton'; allowed: fused, reference" in refusal(reference_wanted)
