"""Learners: what turns experience into better policies."""
