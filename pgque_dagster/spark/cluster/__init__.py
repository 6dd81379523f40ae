"""Sessions and clusters: Java, sessions, shipping the package, errors of executors."""
