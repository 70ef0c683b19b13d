"""How much memory a function takes on the CPU, counted by the allocator."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], object]) -> int:
    """The most that is held at a time of what was allocated since the beginning."""
    settings = {"profile_memory": True, "acc_events": True}  # without the latter torch warns
    with profile(activities=[ProfilerActivity.CPU], **settings) as recorded:
        run()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
