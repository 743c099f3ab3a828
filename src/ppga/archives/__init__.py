"""Archives: the soft one that steers the search, the elitist one that is reported, and their files.

Nothing here needs JAX, so an archive can be read wherever NumPy and pyribs are.
"""

from ppga.archives.files import Archive, load_archive, pretrained
from ppga.archives.pair import ArchiveConfig, ArchivePair, Guidance

__all__ = ["Archive", "ArchiveConfig", "ArchivePair", "Guidance", "load_archive", "pretrained"]
