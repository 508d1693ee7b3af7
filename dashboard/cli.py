"""`intertoken dashboard`: the page on this machine's loopback address; `report` and `timeline`: the same as files."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from dashboard.serving import LONG, VARIABLE, Serving, is_readable_by_others, new_token, read_token, scratch, serve
from dashboard.text import plain
from dashboard.view import ALIGNMENTS, View
from tracer.files.output import check_output, write_output
from tracer.reporting.console import working

Command = TypeVar("Command", bound=Callable[..., Any])


def _prefix(_: click.Context, __: click.Parameter, value: str) -> str:
    from dashboard.serving.guard import prefix_of

    if (prefix := prefix_of(value)) is None:
        raise click.BadParameter(f"{value[:100]!r} is not a path of a URL, such as /intertoken")
    return prefix


def _address(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return str(ip_address(value))
    except ValueError:
        raise click.BadParameter(f"{value[:100]!r} is not an IP address, such as 127.0.0.1") from None


@click.command()
@click.argument("paths", nargs=-1, metavar="[TRACE_OR_DIR]...", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8050, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 for any free one."
)
@click.option("--open/--no-open", "opens", default=True, help="Open a browser.")
@click.option(
    "--token",
    default="auto",
    metavar="TOKEN",
    envvar=VARIABLE,
    show_envvar=True,
    help="Token that readers must give. Other users of this machine can see it on the command line, but not in the "
    "variable.  [default: a new one, printed as a link]",
)
@click.option(
    "--token-file", metavar="FILE", type=click.Path(path_type=Path), help="Read the token from the only line of a file."
)
@click.option("--no-token", "is_open", is_flag=True, help="Require no token: anyone can read the page.")
@click.option(
    "--prefix",
    default="",
    callback=_prefix,
    metavar="/PATH",
    help="Path of the dashboard behind a reverse proxy, whether the proxy strips it or not.",
)
@click.option(
    "--trusted-proxy",
    "proxy",
    callback=_address,
    metavar="ADDRESS",
    help="The reverse proxy whose X-Forwarded-For, -Host and -Proto are trusted.  [default: none]",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Also accept this host name, for example behind a proxy; may be repeated.",
)
@click.option("--upload/--no-upload", "takes", default=True, help="Whether readers may upload recordings.")
@click.option(
    "--upload-limit",
    default=2_000,
    show_default=True,
    type=click.IntRange(1),
    metavar="MB",
    help="Largest upload, packed or unpacked.",
)
@click.option(
    "--cache",
    "kept_in",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for parsed recordings.  [default: INTERTOKEN_CACHE, or in the user's cache directory]",
)
@click.option("--no-cache", "forgets", is_flag=True, help="Do not cache; parse every recording again.")
@click.option(
    "--reader-memory", default=lambda: _memory() // 10**6, type=click.IntRange(1), metavar="MB",
    help="Memory limit for reading a recording.  [default: half of the machine's]",
)  # fmt: skip
@click.option(
    "--reader-seconds", default=600, show_default=True, type=click.IntRange(1), metavar="S",
    help="Time limit for reading a recording, plus one second per megabyte.",
)  # fmt: skip
def dashboard(
    paths: tuple[Path, ...],
    host: str,
    port: int,
    opens: bool,
    token: str,
    token_file: Path | None,
    is_open: bool,
    prefix: str,
    proxy: str | None,
    names: tuple[str, ...],
    takes: bool,
    upload_limit: int,
    kept_in: Path | None,
    forgets: bool,
    reader_memory: int,
    reader_seconds: int,
) -> None:
    """Show recordings side by side in a browser.

    A directory that is not itself a recording is searched for recordings, two levels deep; new ones appear while the
    page is open. Uploads are deleted when the command ends. The printed link contains a token, without which other
    users of this machine cannot read anything. Recordings are read in separate processes; if reading fails, the page
    says so in place of the recording.
    """
    from dashboard.reading.readers import Limits, Readers, give_memory_back
    from dashboard.serving.guard import LOOPBACK

    for path in paths:
        if not path.exists():
            raise click.BadParameter(f"{path}: no such file or directory", param_hint="TRACE_OR_DIR")
    secret = _token(token, token_file, is_open)
    if not _is_loopback(host) and secret is None:
        click.echo(
            f"warning: {host} is not a loopback address and --no-token is set: "
            "anyone who reaches it can read these recordings",
            err=True,
        )
    hosts = {*LOOPBACK, host} if _is_loopback(host) else set()
    allowed = frozenset(hosts | set(names)) if hosts or names else None
    limits = Limits(reader_memory * 10**6, reader_seconds)
    give_memory_back()
    with scratch() as folder, closing(Readers(limits, within=folder)) as readers:
        readers.start()  # while the server's own modules load
        from dashboard.app import create_app
        from tracer.stored import Cache, directory_of_user, set_options

        set_options()
        inbox = folder / "uploads"  # a reader sees the name where two recordings have the same
        inbox.mkdir()
        size = upload_limit * 10**6
        serving = Serving(prefix, allowed, secret, inbox if takes else None, size, proxy=proxy, readers=readers)
        directory = None if forgets else kept_in or directory_of_user()
        cache = None if directory is None else Cache(directory)
        private = folder if opens else None
        serve(create_app(paths, serving, cache).server, host, port, serving, private)


def _token(token: str, file: Path | None, is_open: bool) -> str | None:
    """The token that readers must give, None for none; warns if it is weak."""
    given = click.get_current_context().get_parameter_source("token") is not ParameterSource.DEFAULT
    os.environ.pop(VARIABLE, None)  # child processes need not know it
    if sum((given, file is not None, is_open)) > 1:
        raise click.UsageError(f"choose one of --token (or {VARIABLE}), --token-file and --no-token")
    if is_open:
        return None
    if file is not None:
        token = read_token(file)
        if is_readable_by_others(file):
            click.echo(f"warning: {file} can be read by others: chmod 600 {file}", err=True)
    elif token == "":
        raise click.BadParameter("is empty; use `auto` to generate one", param_hint="--token")
    elif token == "auto":
        return new_token()
    if len(token) < LONG:
        click.echo(f"warning: a token of fewer than {LONG} characters can be guessed; use `auto`", err=True)
    return token


def _file_options(command: Command) -> Command:
    """Add TRACE..., --token and --force, which all commands that write a file about several runs accept."""
    for option in (
        click.option("--force", is_flag=True, help="Replace FILE."),
        click.option("--token", type=click.IntRange(0), metavar="N",
                     help="The token at which the runs are aligned.  [default: one with the median gap]"),
        click.argument("paths", nargs=-1, required=True, metavar="TRACE...", type=click.Path(path_type=Path)),
    ):  # fmt: skip
        command = option(command)
    return command


def _output_option(kinds: str) -> Callable[[Command], Command]:
    return click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(path_type=Path), help=kinds)


@click.command()
@_output_option("The page to write, .html.")
@_file_options
def report(paths: tuple[Path, ...], output: Path, token: int | None, force: bool) -> None:
    """Compare runs, the first being the base, in one HTML file that needs no network (5 MB, mostly Plotly).

    \b
    Example:
      intertoken report runs/sccc runs/saaas runs/aaag -o report.html
    """
    from dashboard.reading.store import runs_to_compare
    from dashboard.report import report_page
    from tracer.stored import set_options

    set_options()
    check_output(output, "a report", (".html", ".htm"), replace=force)
    with working("reading the recordings"):
        page = report_page(runs_to_compare(paths), token)
    write_output(output, lambda place: place.write_text(page, encoding="utf-8"), replace=force)
    click.echo(f"{output}: {len(page.encode()) / 1e6:.1f} MB")


@click.command()
@_output_option("The picture to write, .svg or .png.")
@_file_options
@click.option(
    "--show",
    type=click.Choice(["token", "gap", "all"]),
    default="token",
    show_default=True,
    help="One token and its gap, only the gap, or all tokens.",
)
@click.option(
    "--align",
    type=click.Choice(list(ALIGNMENTS)),
    default="end",
    show_default=True,
    help="Moment of the token's compute that is time 0.",
)
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True)
@click.option("--width", type=click.IntRange(450, 4000), default=1200, show_default=True, metavar="PX")
@click.option("--height", type=click.IntRange(100, 8000), metavar="PX", help="[default: what the rows need]")
@click.option("--scale", type=click.FloatRange(0.1, 8), default=2.0, show_default=True, help="Scale factor of a PNG.")
def timeline(
    paths: tuple[Path, ...], output: Path, token: int | None, force: bool, show: str, align: str, theme: str,
    width: int, height: int | None, scale: float,
) -> None:  # fmt: skip
    """Draw the timelines of runs on one axis as an SVG or PNG.

    Needs intertoken[image] and Chrome or Chromium.

    \b
    Example:
      intertoken timeline runs/sccc runs/saaas --show gap -o gap.svg
    """
    from dashboard import scene
    from dashboard.figures.timeline import IMAGES, image, with_legend
    from dashboard.reading.store import runs_to_compare
    from tracer.stored import set_options

    set_options()
    check_output(output, "a picture", IMAGES, replace=force)
    with working("reading the recordings"):
        runs = runs_to_compare(paths)
    view = View(token=token, align=align)
    view = replace(view, range=scene.range_of(runs, view, show))
    figure, tall = with_legend(*scene.timeline(runs, view, theme, width), theme)
    with working("drawing"):
        picture = image(figure, output.suffix.lower(), width, height or tall, scale)
    write_output(output, lambda place: place.write_bytes(picture), replace=force)
    click.echo(f"{output}: token {scene.token_of(runs, view)} of {', '.join(plain(run.name) for run in runs)}")


def _memory() -> int:
    from dashboard.reading.readers import half_of_memory

    return half_of_memory()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
