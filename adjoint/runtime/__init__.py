"""Running captured programs inside ordinary PyTorch."""
