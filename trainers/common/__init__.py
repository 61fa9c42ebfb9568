"""What all trainers share: their main, flags, progress lines, --logdir and --report."""
