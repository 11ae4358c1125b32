"""`python -m dtrak` is `dtrak`."""

from dtrak.cli import main

if __name__ == "__main__":
    main()
