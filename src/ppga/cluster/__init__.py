"""Outgrowing one machine: rollouts on Ray's workers, arrays over JAX's devices, studies on SLURM."""
