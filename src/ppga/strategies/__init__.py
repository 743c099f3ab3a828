"""Strategies: how coefficients are drawn and adapted. CMA-ES and its relatives come from pyribs."""

from ppga.strategies.xnes import XNES

__all__ = ["XNES"]
