def dot_product_moments(mu, sigma, d):
    s2, m2 = sigma * sigma, mu * mu
    v = d * (2 * m2 * s2 + s2 * s2)
    return [m2 * d, v, v ** 0.5]
