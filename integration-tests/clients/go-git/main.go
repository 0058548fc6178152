// go-git as a client: `clone URL DIR`, `shallow URL DIR`, `fetch DIR`, `push DIR`.
//
// The import paths have no /v5: Debian's package lies in a GOPATH, where only modules know major versions.
package main

import (
	"fmt"
	"os"

	"github.com/go-git/go-git"
	"github.com/go-git/go-git/config"
	"github.com/go-git/go-git/plumbing"
	"github.com/go-git/go-git/plumbing/transport/http"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "%T: %v\n", err, err)
		// The answer is in there, with its headers.
		if unexpected, ok := err.(*plumbing.UnexpectedError); ok {
			if answer, ok := unexpected.Err.(*http.Err); ok {
				fmt.Fprintln(os.Stderr, "Retry-After:", answer.Response.Header.Get("Retry-After"))
			}
		}
		os.Exit(1)
	}
}

func run(command string, args []string) error {
	switch command {
	case "clone":
		_, err := git.PlainClone(args[1], false, &git.CloneOptions{URL: args[0]})
		return err
	case "shallow":
		_, err := git.PlainClone(args[1], false, &git.CloneOptions{URL: args[0], Depth: 1})
		return err
	case "fetch":
		repository, err := git.PlainOpen(args[0])
		if err != nil {
			return err
		}
		return repository.Fetch(&git.FetchOptions{})
	case "push":
		repository, err := git.PlainOpen(args[0])
		if err != nil {
			return err
		}
		return repository.Push(&git.PushOptions{
			RefSpecs: []config.RefSpec{"refs/heads/main:refs/heads/main"},
		})
	default:
		os.Exit(64)
		return nil
	}
}
