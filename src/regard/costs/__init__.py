"""What a model costs: operations, bytes and cache, by formula and by count.

cost(config, "decode", batch=8, length=8191)     each operation with its formula and its numbers
parameters, leading, what_if                     formulas of a model, and the same model changed
Counted(folder).cost("decode", length=8191)      anybody's model, by running it without numbers
measure_machine, placed, roofline_figure         what this machine can do, and what an operation waits for
"""

from regard.costs.count import Counted
from regard.costs.formula import Formula, symbols
from regard.costs.model import Cost, Latent, Row, cost, leading, parameters, what_if
from regard.costs.roofline import Machine, Placed, measure_machine, placed, roofline_figure

__all__ = [
    "Cost",
    "Counted",
    "Formula",
    "Latent",
    "Machine",
    "Placed",
    "Row",
    "cost",
    "leading",
    "measure_machine",
    "parameters",
    "placed",
    "roofline_figure",
    "symbols",
    "what_if",
]
