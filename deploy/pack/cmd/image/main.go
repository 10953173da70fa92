// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Image packs Berth's image into an OCI tar file. See `make image`.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/berth-k8s/berth/deploy/pack"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run() error {
	root := flag.String("root", "../..", "Berth's source")
	out := flag.String("o", "berth-image.tar", "the tar file to write")
	reference := flag.String("image", "", "name and tag of the image (default registry.example.com/berth:VERSION)")
	architectures := flag.String("arch", runtime.GOARCH, "architectures, with commas between: amd64, arm64")
	binaries := flag.String("binaries", "", "a folder of programs that are built already, for the one architecture; they must be static")
	version := flag.String("version", "", "version (default: by git)")
	push := flag.Bool("push", false, "push the image to the registry that -image names")
	node := flag.Bool("node", false, "with the kubelet, to be copied to machines for berth agent")
	integrations := flag.Bool("integrations", false, "with berth-kueue and berth-expander")
	flag.Parse()

	source, err := sourceOf(*root, *version)
	if err != nil {
		return err
	}
	source.Reference, source.Node, source.Integrations = *reference, *node, *integrations
	if source.Reference == "" {
		source.Reference = "registry.example.com/berth:" + source.Version
	}
	if source.License, err = os.ReadFile(filepath.Join(*root, "LICENSE")); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "berth-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	source.Binaries = map[string]string{}
	for _, architecture := range strings.Split(*architectures, ",") {
		if source.Binaries[architecture] = *binaries; *binaries != "" {
			continue
		}
		folder := filepath.Join(work, architecture)
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
		if err := pack.Compile(*root, pack.Platform{OS: "linux", Architecture: architecture}, source.Version, folder,
			pack.ImagePrograms(*node, *integrations)...); err != nil {
			return err
		}
		source.Binaries[architecture] = folder
	}
	if err := source.Write(*out); err != nil {
		return err
	}
	if *push {
		if err := source.Push(context.Background()); err != nil {
			return fmt.Errorf("push %s: %w", source.Reference, err)
		}
		fmt.Printf("pushed %s\n", source.Reference)
	}
	fmt.Printf("%s: %s, for %s\n", *out, source.Reference, *architectures)
	return nil
}

// sourceOf returns the sources of the image: the commit and its time, or SOURCE_DATE_EPOCH without
// git.
func sourceOf(root, version string) (*pack.Image, error) {
	git := func(arguments ...string) string {
		out, err := exec.Command("git", append([]string{"-C", root}, arguments...)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}

	image := &pack.Image{Version: version, Revision: git("rev-parse", "HEAD")}
	if image.Version == "" {
		image.Version = git("describe", "--tags", "--always", "--dirty")
	}

	if image.Version == "" {
		return nil, fmt.Errorf("%s: no version known; give -version", root)
	}
	seconds := os.Getenv("SOURCE_DATE_EPOCH")
	if seconds == "" {
		seconds = git("log", "-1", "--format=%ct")
	}

	epoch, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%s: no commit whose time the image could have; set SOURCE_DATE_EPOCH", root)
	}

	image.Created = time.Unix(epoch, 0)
	return image, nil
}
