"""Run by every interpreter that starts with this folder on its path: arms the faults that the environment asks for."""

import os

if os.environ.get("MASKLOOM_FAULTS") or os.environ.get("MASKLOOM_FAULT_LOG"):
    from fault_rules import arm

    arm(os.environ.get("MASKLOOM_FAULTS", ""), os.environ.get("MASKLOOM_FAULT_LOG"))
