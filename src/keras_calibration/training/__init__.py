"""One pipeline trained under many seeds: in one program, in processes, or on a Ray cluster."""
