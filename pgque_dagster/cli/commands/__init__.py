"""The subcommands of `pgque`, one module per subject."""
