"""The front door: `python -m launch ...` starts a job (see `tf2dist.launch`). Beside it, launch scripts to copy."""
