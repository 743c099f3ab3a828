"""Benchmarks of ppga, also beside other libraries: `python -m benchmarks NAME` in the root of the repository.

They report ratios within one run, and write all figures to a JSON file.
"""
