"""Where the workers of a distributed run are, for Ray and for JAX."""

from dataclasses import dataclass

from ppga.errors import InputError, check_count


@dataclass(frozen=True)
class Cluster:
    """Where a run's workers are.

    Attributes:
        address: for Ray, the cluster's HOST:PORT, or auto for the cluster of this machine; None starts one on
            this machine for the duration of the run. For JAX, HOST:PORT of the first process, or auto if
            SLURM, Open MPI or Kubernetes started the processes; None if there is only one.
        workers: for Ray, the number of workers, one for each core of the cluster by default; for JAX, the
            number of processes.
        rank: for JAX, the number of this process, from 0.
    """

    address: str | None = None
    workers: int | None = None
    rank: int | None = None

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        if self.workers is not None:
            check_count("--workers", self.workers)
        if self.rank is not None and not 0 <= self.rank < (self.workers or 1):
            raise InputError(f"--rank counts the {self.workers or 1} workers from 0, got {self.rank}.")
        if self.address not in (None, "auto"):
            host, colon, port = str(self.address).rpartition(":")
            if not (colon and host and port.isdigit()):
                raise InputError(f"--address must be HOST:PORT or auto, got {self.address!r}.")
