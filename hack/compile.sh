#!/bin/bash
# go build with its arguments. On a terminal it shows which package is being compiled, and how many
# there have been: the first build of Kubernetes takes minutes.
set -o pipefail
if ! [ -t 2 ]; then
	exec go build "$@"
fi
go build -v "$@" 2>&1 | awk '
	/^[A-Za-z0-9._\/-]+$/ { printf "\r\033[K    %d packages: %s", ++n, substr($0, 1, 60); fflush(); next }
	{ printf "\r\033[K"; print }
	END { printf "\r\033[K" }' >&2
