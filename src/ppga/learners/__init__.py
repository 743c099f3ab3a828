"""Learners: algorithms that improve policies by experience; import from the modules."""
