"""What can be set: the checkpoint's config.json, read strictly and refused by name."""
