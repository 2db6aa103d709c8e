def dot_product_moments(mu, sigma, d):
    """Given k, q . k has mean mu * sum(k) and variance sigma^2 * |k|^2; then over k."""
    mean = sum(mu * mu for _ in range(d))
    expected_variance = sigma**2 * d * (sigma**2 + mu**2)
    variance_of_mean = mu**2 * (d * sigma**2)
    variance = expected_variance + variance_of_mean
    return mean, variance, pow(variance, 1 / 2)
