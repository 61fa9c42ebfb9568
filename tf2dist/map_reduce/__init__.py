"""`map_reduce`: maps shards on the devices or workers of a strategy and reduces the results as a tree."""
