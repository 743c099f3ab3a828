"""Limits for files, so that reading a small file cannot take a large amount of memory or time.

They apply to every archive, checkpoint and JSON file that is read, and also to the settings of a run, so that
all files that a run writes can be read again.
"""

LARGEST_JSON = 2**24
"""Bytes of a JSON file or of an archive's header. Parsed JSON takes about twenty times as much memory."""
DEEPEST_JSON = 100
"""Nested lists and objects in JSON; the files of a run have at most 6 levels. Python's limit is its stack."""
LONGEST_INTEGER = 40
"""Characters of an integer in JSON, including its sign: enough for 128 bits, and accepted by float()."""
LARGEST = 3.4028234663852886e38
"""Largest number of single precision, the type of archives and policies."""
MOST_CELLS = 10_000_000
"""Cells of an archive. Included tasks have at most 10,000; a full archive of this size exceeds any memory."""
MOST_AXES = 32
"""Axes of an array, and measures of a grid. NumPy allows 64 axes; finding neighbors takes two per measure."""
MOST_POLICIES = 2**20
"""Policies evaluated in an iteration. The included presets have fewer than 2,000."""
LONGEST_EPISODE = 100_000
"""Control steps of an episode. The usual number is 1,000; the viewer stores all steps of an episode."""
LONGEST_NAME = 1000
"""Characters in the name of a task or a measure."""
