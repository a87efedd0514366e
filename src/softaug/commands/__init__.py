"""One file per subcommand of the command line; see `softaug.cli`."""
