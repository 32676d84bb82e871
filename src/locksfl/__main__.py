"""`python -m locksfl` is the program `locks`."""

from locksfl.cli import start

if __name__ == "__main__":
    start()
