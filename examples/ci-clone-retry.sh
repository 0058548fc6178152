#!/usr/bin/env bash
# Runs a git command, and runs it again while the server is too busy for it (HTTP 429, or packgate's `refusal.style: git`):
#
#   ci-clone-retry.sh git clone https://git.example.com/team/app.git
#   ci-clone-retry.sh git fetch origin
#
# git itself does not: it never repeats the POST that asks for a pack, and does not show the Retry-After that came with the
# refusal. So the pauses are ours: they double from GIT_RETRY_FIRST seconds (10) to GIT_RETRY_LONGEST (300), and each is
# shortened by a random part of up to a half, so that jobs that were refused together do not come back together. After
# GIT_RETRY_ATTEMPTS runs (10, about half an hour with these pauses) it gives up. Any other failure ends it at once, with
# git's own exit code.
#
# A clone that was refused leaves nothing behind: git removes the directory it had made.
set -uo pipefail

attempts=${GIT_RETRY_ATTEMPTS:-10}
pause=${GIT_RETRY_FIRST:-10}
longest=${GIT_RETRY_LONGEST:-300}

if [ $# = 0 ]; then
    echo "usage: ${0##*/} git clone URL [DIRECTORY]" >&2
    exit 64
fi
said=$(mktemp) || exit 74
trap 'rm -f "$said"' EXIT

for ((attempt = 1; ; attempt++)); do
    # stdout goes where it went, by way of descriptor 3; stderr is shown and kept.
    { "$@" 2>&1 >&3 3>&- | tee "$said" >&2 3>&-; status=${PIPESTATUS[0]}; } 3>&1
    if [ "$status" = 0 ] || ! grep -qE 'HTTP 429|returned error: 429|remote error: packgate: .*try again in' "$said"; then
        exit "$status"
    fi
    if [ "$attempt" -ge "$attempts" ]; then
        echo "${0##*/}: still too busy after $attempt attempts" >&2
        exit "$status"
    fi
    seconds=$((pause - RANDOM % (pause / 2 + 1)))
    echo "${0##*/}: the server is busy, attempt $attempt of $attempts; again in $seconds s" >&2
    sleep "$seconds"
    pause=$((pause * 2 > longest ? longest : pause * 2))
done
