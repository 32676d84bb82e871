"""`python -m locksfl` is the program `locks`."""

from locksfl.cli.main import main

if __name__ == "__main__":
    main()
