"""What `softaug bench NAME` runs: one file each, with `add_arguments(parser)` and `run(args) -> int`."""
