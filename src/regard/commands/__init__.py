"""The commands of `regard`, a file for each group of them; cli.py says which is where."""
