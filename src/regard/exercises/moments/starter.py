def dot_product_moments(mu, sigma, d):
    """(mean, variance, scale) of q . k, for vectors of d independent numbers of mean mu
    and deviation sigma.
    """
    raise NotImplementedError
