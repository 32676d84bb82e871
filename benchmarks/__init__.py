"""Speed of this project beside its peers, on one machine and in one run: see README.md."""
