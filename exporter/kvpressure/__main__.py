"""`python -m kvpressure`."""

from kvpressure.cli import main

if __name__ == "__main__":
    main()
