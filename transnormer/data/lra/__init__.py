"""The five tasks of the Long-Range Arena (Tay et al. 2021): their data, generated or read from the public files."""
