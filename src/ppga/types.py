"""Type aliases."""

from typing import Any

import numpy as np

NumpyArray = np.ndarray[Any, Any]
"""An array of NumPy, of any type and shape."""
ArraySpec = tuple[np.dtype[Any], tuple[int, ...]]
"""Type and shape of an array."""
