"""This process in the job: joining it, serving, strategies, devices, collectives, and where operations were placed."""
