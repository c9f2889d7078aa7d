import numpy as np
import torch

from widthwise.analysis.moments import Moments


def test_pieces_give_mean_and_variance_of_the_whole_even_far_from_zero():
    values = 1e8 + np.random.default_rng(0).normal(size=(11, 3, 2))
    moments = Moments()
    for piece in np.split(values, (3, 4)):
        moments.add(torch.from_numpy(piece))
    np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-6)


def test_values_that_do_not_vary_have_variance_0():
    moments = Moments()
    for _ in range(3):
        moments.add(torch.full((1, 2), 0.1, dtype=torch.float64))
    assert moments.variance.tolist() == [0.0, 0.0]
