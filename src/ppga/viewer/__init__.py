"""The viewer: an archive as a map in the browser; click a cell, watch the gait."""
