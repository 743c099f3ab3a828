"""Bounds on what a file may ask for, so that a small file cannot take a large amount of memory or time.

They apply to every archive, checkpoint and JSON file that is read, whoever wrote it, and to the settings of a
run, so that whatever a run writes can be read again.
"""

LARGEST_JSON = 2**24
"""Bytes of a JSON file, or of an archive's header. Parsed, JSON takes some twenty times as much memory."""
DEEPEST_JSON = 100
"""Levels of lists and tables in JSON: the files of a run have at most 6. Python's own limit is its stack."""
LONGEST_INTEGER = 40
"""Digits of a whole number in JSON, its sign included: enough for 128 bits, and float() takes as many."""
LARGEST = 3.4028234663852886e38
"""The largest number of single precision, in which archives are kept and policies are run."""
MOST_CELLS = 10_000_000
"""Cells of an archive. The included tasks have at most 10,000; full archives of so many fit in no memory."""
MOST_AXES = 32
"""Dimensions of an array, and measures of a grid. NumPy has 64; neighbors of cells take two per measure."""
MOST_POLICIES = 2**20
"""Policies of an iteration, over all emitters. The included presets have fewer than 2,000."""
LONGEST_EPISODE = 100_000
"""Control steps of an episode: a hundred times the usual number. The viewer keeps all steps of an episode."""
LONGEST_NAME = 1000
"""Characters in the name of a task or of a measure, which is drawn and printed."""
