"""More than one core or device: executors for Ray's workers and for JAX's devices, and studies on SLURM."""
