"""The viewer: an archive's heatmap in the browser; a click on a cell shows its elite walk."""
