"""Programs to run on any strategy: `python -m trainers.NAME`.

NAME is hello, linear, mapreduce, matmul, mnist, pi, recommender or life. `NAME_*.py` belongs to the program NAME, and
`common` is what all of them share.
"""
