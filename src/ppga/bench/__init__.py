"""Benchmarks behind `ppga bench`: ratios within one run, in one JSON form."""
