"""Feature maps against the similarities they stand for."""

import math

import pytest
import torch

from regard.attention.feature_maps import EluPlusOne, Quadratic, RandomFeatures, Relu

QK_DIM, QUERY, KEY = 5, 13, 29
DOUBLE = {"atol": 1e-10, "rtol": 1e-10}  # a few hundred sums in float64 lose far less
FEATURE_MAPS = [EluPlusOne(), Relu(), Quadratic(0.7), RandomFeatures.draw(QK_DIM, 11, seed=3)]
every_feature_map = pytest.mark.parametrize("phi", FEATURE_MAPS, ids=["elu1", "relu", "quadratic", "favor"])


@pytest.mark.parametrize("c", [0.0, 1.0, 2.5])
def test_quadratic_features_multiply_to_the_square(c):
    """phi(q) . phi(k) is (q . k + c)^2 to rounding, from 1 + D + D(D+1)/2 features."""
    q, k = torch.randn(3, QUERY, 11, dtype=torch.float64), torch.randn(3, KEY, 11, dtype=torch.float64)
    phi = Quadratic(c)
    features = phi.phi(q)
    assert features.shape[-1] == phi.dim(11) == 1 + 11 + 66
    square = (torch.einsum("bid,bjd->bij", q, k) + c) ** 2
    torch.testing.assert_close(torch.einsum("bif,bjf->bij", features, phi.phi(k)), square, **DOUBLE)
    torch.testing.assert_close(phi.similarity(q, k), square, **DOUBLE)


@every_feature_map
def test_features_are_the_same_with_and_without_gradients(phi):
    """A map may write its features in place when no gradient is wanted: the numbers must not differ."""
    x = torch.randn(2, 3, 7, QK_DIM, dtype=torch.float64)
    assert torch.equal(phi.phi(x), phi.phi(x.clone().requires_grad_()).detach())
    assert phi.phi(x).shape[-1] == phi.dim(QK_DIM)
    assert torch.autograd.gradcheck(phi.phi, x[:1].abs().requires_grad_())


def test_elu_plus_one_keeps_what_expm1_would_lose():
    """At -30, elu(x) + 1 is exp(-30), and not the 0 that 1 - 1 gives in float32."""
    x = torch.tensor([[-30.0, -1.0, 0.0, 2.0]])
    expected = torch.tensor([[math.exp(-30), math.exp(-1), 1.0, 3.0]])
    torch.testing.assert_close(EluPlusOne().phi(x), expected, atol=0, rtol=1e-6)


def test_random_features_estimate_the_exponential_without_bias():
    """Averaged over 2000 seeds, phi(q) . phi(k) is exp(scale q . k) within four standard errors."""
    q, k = torch.tensor([[0.8, -0.3, 0.5]]).double(), torch.tensor([[0.2, 0.9, 0.7]]).double()
    draws = torch.stack(
        [RandomFeatures.draw(3, 7, seed=seed, scale=1.0).similarity(q, k)[0, 0] for seed in range(2000)]
    )
    error = draws.std() / math.sqrt(len(draws))
    assert abs(draws.mean() - math.exp(float(q[0] @ k[0]))) < 4 * error


def test_orthogonal_directions_are_orthogonal_and_repeatable():
    """Rows within a group of qk_dim stand at right angles, and a seed gives the same ones again."""
    drawn = RandomFeatures.draw(7, 17, seed=5).projection
    products = drawn[:7].double() @ drawn[:7].double().T
    torch.testing.assert_close(products, products.diagonal().diag(), atol=1e-5, rtol=0)
    assert torch.equal(drawn, RandomFeatures.draw(7, 17, seed=5).projection)
    assert not torch.equal(drawn, RandomFeatures.draw(7, 17, seed=6).projection)
