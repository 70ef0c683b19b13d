"""What an error of the file system means for a run."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Adds to an error of the file system that the run can go on."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror or error}. The run stops; what it wrote before is intact, and every "
            "step that it took is paid for. Free some space or mend the disk, then start it again "
            "and resume: it goes on from its last checkpoint",
            error.filename,
        ) from error
