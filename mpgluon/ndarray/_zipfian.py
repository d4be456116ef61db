"""Draws from an approximately Zipfian distribution, for arrays and for symbols."""

import math


def draw(uniform, true_classes, num_sampled, range_max):
    """Returns the results of `rand_zipfian`.

    `uniform` draws `num_sampled` float64 numbers between 0 and its argument.
    """
    log_range = math.log(range_max + 1)
    sampled = (uniform(log_range).exp() - 1).astype("int64") % range_max

    def count(classes):
        classes = classes.astype("float64")
        return ((classes + 2.0) / (classes + 1.0)).log() / log_range * num_sampled

    return sampled, count(true_classes), count(sampled)
