"""Archives: the soft one that steers the search, the elitist one that is reported, and their files.

Nothing here needs JAX, so an archive can be read wherever NumPy and pyribs are.
"""

from ppga.archives.files import Archive, load_archive
from ppga.archives.pair import Added, ArchiveConfig, ArchivePair

__all__ = ["Added", "Archive", "ArchiveConfig", "ArchivePair", "load_archive"]
