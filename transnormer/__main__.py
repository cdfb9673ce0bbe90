"""`python -m transnormer` is the `transnormer` command; `torchrun -m transnormer train ...` uses it."""

from transnormer.cli.app import main

if __name__ == "__main__":
    main()
