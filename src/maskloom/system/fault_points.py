"""Named places at which tests can kill or disturb a run; nothing happens there otherwise."""


def disturb(name: str) -> None:
    """Do nothing; tests put a function in its place that kills or disturbs the run (`arm` in tools/faults)."""


def fault_point(name: str) -> None:
    """Mark a place where tests can inject a fault by `name`, dotted as in `files.rename`."""
    disturb(name)
