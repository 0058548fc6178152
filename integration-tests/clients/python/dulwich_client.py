"""dulwich as a client: `clone URL DIR`, `shallow URL DIR`, `fetch DIR`, `push DIR`, `version`."""

import io
import sys

import dulwich
from dulwich import porcelain


def main(command, *arguments):
    progress = io.BytesIO()
    match command, arguments:
        case "clone", (url, directory):
            porcelain.clone(url, directory, checkout=False, errstream=progress)
        case "shallow", (url, directory):
            porcelain.clone(url, directory, checkout=False, errstream=progress, depth=1)
        case "fetch", (directory,):
            porcelain.fetch(directory, "origin", outstream=io.StringIO(), errstream=progress)
        case "push", (directory,):
            porcelain.push(directory, "origin", b"refs/heads/main", outstream=progress, errstream=progress)
        case "version", ():
            print(".".join(map(str, dulwich.__version__)))
        case _:
            sys.exit(64)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
