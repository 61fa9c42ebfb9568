"""Programs that train, or compute, on any strategy: python -m trainers.NAME."""
