"""pygit2, and so libgit2, as a client: `clone URL DIR`, `shallow URL DIR`, `fetch DIR`, `push DIR`, `version`."""

import sys

import pygit2


def main(command, *arguments):
    match command, arguments:
        case "clone", (url, directory):
            pygit2.clone_repository(url, directory)
        case "shallow", (url, directory):
            pygit2.clone_repository(url, directory, depth=1)
        case "fetch", (directory,):
            pygit2.Repository(directory).remotes["origin"].fetch()
        case "push", (directory,):
            pygit2.Repository(directory).remotes["origin"].push(["refs/heads/main"])
        case "version", ():
            print(f"{pygit2.__version__} (libgit2 {pygit2.LIBGIT2_VERSION})")
        case _:
            sys.exit(64)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
