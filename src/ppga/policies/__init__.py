"""Policies: networks over flat parameter vectors, observation normalizers, and Gaussian actors.

`network` needs NumPy only, so that archives can be read without JAX; import from the modules.
"""
