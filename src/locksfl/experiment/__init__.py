"""A run, from its TOML file to what may be published of it.

In: settings and a population.
Out: the run folder, which is secret; and, made of releases alone, its statement, page and bundle.
May not import: audit, federation, paper, cli. What `publish` writes is listed, field by field.
"""
