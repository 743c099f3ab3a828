"""Archives: the soft one that steers the search, the elitist one that is reported, and their files.

Nothing here needs JAX, so an archive can be read wherever NumPy and pyribs are.
"""

from ppga.archives.elites import ArchiveConfig, EliteArchive
from ppga.archives.files import Archive, load_archive, pretrained
from ppga.archives.soft import RibsSoftArchive, SoftAddition, SoftArchive, SoftArchiveConfig

__all__ = [
    "Archive",
    "ArchiveConfig",
    "EliteArchive",
    "RibsSoftArchive",
    "SoftAddition",
    "SoftArchive",
    "SoftArchiveConfig",
    "load_archive",
    "pretrained",
]
