"""Data of the recipes: named sets, readers of files, and the splits and loaders around them."""
