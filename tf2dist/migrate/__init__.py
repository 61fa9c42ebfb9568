"""Which distributed concepts of TensorFlow 1 a program uses, line by line: python -m tf2dist.migrate FILE...

`python_tokens` cuts a program's text into names and strings, whatever Python it is for; `uses` finds out what the names
stand for; `concepts` says which row of docs/mapping.md is about them. Nothing of the program is imported or run, and
nothing here imports TensorFlow.
"""
