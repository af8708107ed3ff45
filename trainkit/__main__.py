"""``python -m trainkit``."""

from trainkit.cli.main import main

if __name__ == "__main__":
    main()
