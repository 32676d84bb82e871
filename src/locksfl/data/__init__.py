"""Whose records there are.

In: files, tables and arrays whose every record has an owner; splits and recipes.
Out: a `Population`: the records of each client, and held-out records that belong to none.
May not import: models, or anything that trains.
"""
