from math import sqrt


def dot_product_moments(mu: float, sigma: float, d: int) -> tuple[float, float, float]:
    mean = d * mu**2
    variance = d * sigma**2 * (sigma**2 + 2 * mu**2)
    return mean, variance, sqrt(variance + mean**2)  # the typical size of q . k
