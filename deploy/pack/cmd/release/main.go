// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Release builds the files of a release: see docs/contribute/release.md and `make release`.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-k8s/berth/deploy/pack"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run() error {
	r := &pack.Release{Programs: map[pack.Platform]string{}}
	flag.StringVar(&r.Root, "root", "../..", "Berth's source")
	flag.StringVar(&r.Version, "version", "", "the version, as v1.2.3")
	flag.StringVar(&r.Repository, "repository", "registry.example.com/berth", "where the image will be pushed")
	flag.StringVar(&r.Key, "key", "", "sign the checksums with this ECDSA key, a PEM file")
	out := flag.String("o", "", "the folder to write to")
	chart := flag.Bool("chart", false, "write the chart alone, of the source as it is, and print its file")
	flag.Parse()

	if *chart {
		file, err := r.WriteChart(*out)
		if err == nil {
			fmt.Println(file)
		}
		return err
	}
	if err := r.Check(); err != nil {
		return err
	}

	git := func(arguments ...string) (string, error) {
		text, err := exec.Command("git", append([]string{"-C", r.Root}, arguments...)...).Output()
		return strings.TrimSpace(string(text)), err
	}

	changes, err := git("status", "--porcelain")
	if err != nil {
		return fmt.Errorf("a release is made from a clone: %w", err)
	}
	if changes != "" {
		return fmt.Errorf("the clone has changes that are not committed; a release is a commit")
	}
	if r.Revision, err = git("rev-parse", "HEAD"); err != nil {
		return err
	}

	stamp, err := git("log", "-1", "--format=%ct")
	if err != nil {
		return err
	}

	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return err
	}

	r.Created = time.Unix(seconds, 0)
	work, err := os.MkdirTemp("", "berth-release-")
	if err != nil {
		return err
	}

	defer os.RemoveAll(work)
	for i, p := range pack.Platforms {
		fmt.Printf("==> %d of %d: compiling for %s\n", i+1, len(pack.Platforms), p)
		r.Programs[p] = filepath.Join(work, p.String())
		if err := os.Mkdir(r.Programs[p], 0o755); err != nil {
			return err
		}
		if err := pack.Compile(r.Root, p, r.Version, r.Programs[p], pack.ProgramsOf(p)...); err != nil {
			return err
		}
	}

	fmt.Println("==> packing")
	if err := r.Write(*out); err != nil {
		return err
	}

	fmt.Printf("%s: Berth %s, commit %.12s\n", *out, r.Version, r.Revision)
	return nil
}
