"""The commands of `pgque`, a module for each subject."""
