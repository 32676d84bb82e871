"""What is trained: models, fixed features, and the files of trained models.

In: the names and options of `[model]` and `[features]`, the shape of a record, its task.
Out: pure functions from weights and records to losses and scores; `Fitted`, a model that predicts.
May not import: the round. A model knows nothing of clients, noise or privacy.
"""
