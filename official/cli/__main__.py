"""`python -m official.cli` is `bert`."""

from official.cli.main import main

if __name__ == "__main__":
    main()
