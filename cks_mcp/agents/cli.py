"""Entry points of the worker programs: ready for a signal before anything slow is imported."""

from __future__ import annotations


def critic() -> None:
    """`cks-critic-agent`."""
    from cks_mcp.lifecycle import exit_on_early_signals

    exit_on_early_signals()

    from cks_mcp.agents.critic import main

    main()
