"""The differential tester: random trainings by `keras.Model.fit` on one device and by `tf2dist.fit`, compared.

A *configuration* is what differs from the simplest training, as a flat dictionary of options (`configurations`). It is
made into a model, data and callbacks (`parts`, `steps`) and trained (`training`), by Keras and by ours, each in
processes of their own (`jobs`); what came out is compared number by number (`outcomes`), and a configuration that gave
other numbers is shrunk to the fewest options that still do (`search`).

    python -m tests.differential --strategy=mirrored --replicas=2 --seeds=0:60
"""
