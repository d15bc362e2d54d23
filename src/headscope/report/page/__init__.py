"""The page: one HTML file made from run folders, and the server that shows runs as they go on."""
