#!/bin/sh
# Checks the English of comments, documentation and help texts with Vale and the style in this folder
# (CONTRIBUTING.md, "English"). Vale parses Go with a library in C, so compiling it needs a C compiler.
set -eu
cd "$(dirname "$0")/../.."
compiler=$(go env CC)
if [ "${BERTH_INSTALL-}" != no ] && ! command -v "$compiler" >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	export DEBIAN_FRONTEND=noninteractive
	get="apt-get -q -y -o DPkg::Lock::Timeout=300 --no-install-recommends install gcc libc6-dev"
	{ $get || { apt-get -q -o DPkg::Lock::Timeout=300 update && $get; }; } >&2 || true
fi
if ! command -v "$compiler" >/dev/null; then
	echo "    skipped: Vale needs a C compiler, and there is no $compiler here: install gcc" >&2
	exit 0
fi
vale() { CGO_ENABLED=1 go tool -modfile=hack/vale/go.mod vale --no-global "$@"; }

vale test hack/vale
# One process for all files. Two thousand names are far from the limit of a command line.
vale --output=line "$@" $(git ls-files '*.go' '*.md')
# Help texts: in their page they are code blocks, which Vale skips in Markdown.
vale --output=line "$@" --ignore-syntax docs/reference/flags.md
