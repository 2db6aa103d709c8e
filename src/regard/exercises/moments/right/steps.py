def dot_product_moments(mu, sigma, d):
    mean_of_one = mu ** 2
    second_of_one = (sigma ** 2 + mu ** 2) ** 2
    variance_of_one = second_of_one - mu ** 4
    mean = d * mean_of_one
    variance = d * variance_of_one
    scale = variance ** 0.5
    return mean, variance, scale
