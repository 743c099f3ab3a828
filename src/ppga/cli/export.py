"""`ppga export`: policies for use elsewhere."""

from pathlib import Path
from typing import Annotated

import tyro

from ppga.cli.common import Run, command, console, progress_bar, writing
from ppga.errors import InputError, check_choice


def export(
    run: Run,
    best: bool = False,
    cell: tuple[int, ...] = (),
    all: bool = False,
    format: str = "onnx",
    output: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
    which: str | None = None,
    small: bool = False,
    shape: tuple[int, ...] = (),
) -> None:
    """Write policies for use elsewhere: one file each, including normalizer and action scaling; or a smaller
    archive with all of them.

    Example: ppga export runs/walker --cell 27 --format onnx --output policies

    Example: ppga export runs/walker --format archive --small --output walker2d.safetensors

    Every policy file is compared with the policy on random observations before it is written.

    Args:
        run: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        best: export the elite with the highest objective.
        cell: export the elites of these cells: numbers of cells, as the viewer shows them.
        all: export every elite; the default for --format archive.
        format: onnx (needs the extra `export`), npz, or archive.
        output: folder of the files, policies by default; for an archive its file, by default
            TASK.safetensors.
        which: archived (as trained) or corrected (by ppga evaluate). By default policies are those of the
            archived one, and an archive is the corrected one if there is one.
        small: for an archive: solutions in half precision, without data that only training needs.
        shape: for an archive: cells along each measure of another grid, which keeps the best elite of each.
    """
    from ppga.archives.files import find_archive, load_archive
    from ppga.export import FORMATS, choose_archive, to_archive, which_of
    from ppga.export import export as write
    from ppga.storage import plain_name

    check_choice("format", format, (*FORMATS, "archive"))
    to_one_file = format == "archive"
    every = all or (to_one_file and not (best or cell))
    if best + bool(cell) + every != 1:
        raise InputError("choose the policies by one of --best, --cell NUMBER... and --all.")
    if (small or shape) and not to_one_file:
        raise InputError("--small and --shape need --format archive.")
    source = find_archive(run) if which is None and not to_one_file else choose_archive(run, which)
    archive = load_archive(source, mapped=True)
    name = plain_name(archive.description["task"]["name"])
    output = output or Path(f"{name}.safetensors" if to_one_file else "policies")
    if to_one_file and output.suffix != ".safetensors":
        raise InputError(f"--output must be NAME.safetensors for an archive, got {output}.")
    cells = [archive.best()] if best else archive.elites["index"].tolist() if every else list(cell)
    if not cells:
        raise InputError("the archive is empty.")
    for number in cells:
        archive.elite(number)  # raises an InputError before anything is written
    if to_one_file:
        chosen = archive if every else archive.only(*cells)
        with writing(output):
            written = to_archive(chosen, source, output, small=small, shape=shape)
            size, grid = output.stat().st_size, "x".join(map(str, written.shape))
        console.print(
            f"{output}: {len(written)} elites of the {which_of(written)} archive in {grid} cells "
            f"({written.coverage:.1%}); {size / 1e6:.2f} MB, {size // len(written):,} bytes per elite",
            highlight=False,
            soft_wrap=True,
        )
        return
    with writing(output), progress_bar(f"writing {format}", len(cells)) as progress:
        files = write(archive, cells, output, format, progress)
    console.print(f"{files[0] if len(files) == 1 else f'{len(files)} policies in {output}'}", soft_wrap=True)


main = command(export)
