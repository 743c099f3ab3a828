"""Analysis: metrics, figures, corrected archives and reports of runs."""
