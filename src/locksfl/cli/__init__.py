"""The program `locks`: a thin file for each group of commands."""
