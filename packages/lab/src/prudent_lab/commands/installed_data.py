"""What `prudent doctor` says of the data sets on this machine."""

from collections.abc import Iterator

from prudent.cli.commands.checks import DoctorFinding


def data_sets() -> Iterator[DoctorFinding]:
    """Which named data sets are there, and which are not."""
    from prudent_lab.data_files import cache_folder, search_folders
    from prudent_lab.named_datasets import NAMED_DATASETS

    there = [
        name
        for name, source in NAMED_DATASETS.items()
        if any(form.paths(folder) for folder in search_folders(name) for form in source.forms)
    ]
    absent = [name for name in NAMED_DATASETS if name not in there]
    if there:
        yield DoctorFinding("data sets", "ok", ", ".join(there))
    if absent:
        where = f"PRUDENT_DATA or {cache_folder()}"
        yield DoctorFinding("data sets", "missing", f"{', '.join(absent)}; looked for in {where}")
