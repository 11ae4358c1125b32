"""`python -m dtrak` does the same as the command `dtrak`."""

from dtrak.cli import main

if __name__ == "__main__":
    main()
