"""Run by every interpreter that starts with this folder on its path: arms the faults that the environment asks for."""

import os

if os.environ.get("MASKLOOM_FAULTS") or os.environ.get("MASKLOOM_FAULT_LOG"):
    from fault_rules import arm

    try:
        arm(os.environ.get("MASKLOOM_FAULTS", ""), os.environ.get("MASKLOOM_FAULT_LOG"))
    except Exception as error:  # Python would only print it, and go on without the fault
        raise SystemExit(f"MASKLOOM_FAULTS: {error}") from error
