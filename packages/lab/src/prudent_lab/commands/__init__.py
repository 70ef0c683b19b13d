"""The lab's commands, which `prudent.cli` finds as plug-ins."""
