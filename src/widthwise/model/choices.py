"""What a layer decides in a forward pass, besides what it computes."""

from torch import Tensor

Choices = dict[str, Tensor]
"""What a layer returns besides the stream about its decisions; empty if it makes none.

auxiliary_loss: scalar added to the objective, coefficients included; never part of a reported loss.
width_fraction: (B, T) fp32, the hidden width each token asks for over d_ff, with gradient.
expert_load: (n_experts,), each expert's share of the routed choices, without gradient.
balance_loss, router_z_loss: scalars without gradient, for reports.
"""
