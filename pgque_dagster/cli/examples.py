"""Examples in a command's help."""


def examples(*lines: str) -> str:
    r"""Returns examples as an epilog. `\b` keeps click from joining the lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
