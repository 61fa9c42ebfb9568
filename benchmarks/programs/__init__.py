"""Programs that benchmarks start in the processes of a cluster."""
