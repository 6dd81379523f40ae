"""Java, Spark sessions, shipping the package to executors, and the errors of executors."""
